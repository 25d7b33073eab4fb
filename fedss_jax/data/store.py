"""All pictures of a data set, decoded once into one array on disk, [N, size, size, 3] uint8, mapped into memory.

A round gathers thousands of pictures at random places. From an array with rows of one length that is a copy: no
decoder and no record framing stand between disk and device, and what fits into memory stays there, in the operating
system's page cache, for all runs on the machine. The price is size * size * 3 bytes a picture, 197 kB at 256: 24 GB
for Stanford Online Products, 36 GB for Landmarks-User-160k, 2.8 TB for ImageNet-21k.

Pictures are decoded by threads. On two cores they are as fast as processes, start at once and need nothing to be sent
to and fro. Pillow holds Python's lock for about a tenth of the time that a photograph takes: some ten cores can be kept
busy, not more.
"""

from __future__ import annotations

import collections
import functools
import json
import os
import shutil
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from fedss_jax.data.cache import alone, cache_folder
from fedss_jax.data.decode import decode
from fedss_jax.data.index import BadImage, Pictures
from fedss_jax.types import UserError

FORMAT = 1  # raise it whenever a change of decode.py changes the pixels, or a change here the files
SYNC_SECONDS = 5.0  # about so much work is lost when a build is killed
UNDER_WAY = 1024  # pictures handed to the threads ahead of time: enough that they never wait for the disk
LARGE_ROW = 1 << 14  # bytes: some pages of memory
READERS, READ_BYTES = 16, 1 << 22  # threads that gather rows, and how much each fetches at a time
ALIGNMENT = 64  # bytes
BAD_PICTURES = "bad_pictures.txt"


class Built(NamedTuple):
    images: np.ndarray  # [N, size, size, 3] uint8, mapped from the file; rows that are not ok are zeros
    ok: np.ndarray  # [N] bool
    reasons: dict[int, str]  # why a row is not ok


def store_folder(pictures: Pictures, size: int, cache_dir: str) -> Path:
    return cache_folder(cache_dir) / f"pictures-{pictures.fingerprint()}-{size}"


def build(pictures: Pictures, size: int, cache_dir: str, workers: int) -> Built:
    """Decodes what is not decoded yet, with so many threads (0: one a core).

    It may be killed at any moment, and goes on from there the next time. Pictures that cannot be used are tried again
    each time, as someone may have mended them; they are listed in bad_pictures.txt. Those that are decoded are not
    looked at again: after a picture was exchanged for another of the same name, delete the folder.
    """
    folder = store_folder(pictures, size, cache_dir)
    header = {"format": FORMAT, "pictures": len(pictures), "size": size}
    reasons: dict[int, str] = {}
    try:
        if not _complete(folder, header) and not _read_only(folder, header):
            folder.mkdir(parents=True, exist_ok=True)
            with alone(folder, "decoding the same pictures"):
                if not _sound(folder, header):
                    _create(folder, header)
                reasons = _fill(folder, header, pictures, workers or os.cpu_count() or 1)
    except OSError as error:
        raise UserError(f"cannot keep decoded pictures in {folder}: {error}; make room or set data.cache_dir") from None
    done = _done(folder)
    for row in np.flatnonzero(~done).tolist():
        reasons.setdefault(row, "not decoded (the folder of decoded pictures cannot be written to)")
    return Built(_map(folder, header), done, reasons)


def _lengths(header: dict[str, int]) -> dict[str, int]:
    """The files' names and lengths in bytes."""
    return {"pixels.u8": header["pictures"] * header["size"] ** 2 * 3, "done.u8": header["pictures"]}


def _sound(folder: Path, header: dict[str, int]) -> bool:
    try:
        if json.loads((folder / "header.json").read_text()) != header:
            return False
        return all((folder / name).stat().st_size == length for name, length in _lengths(header).items())
    except (OSError, ValueError):
        return False


def _done(folder: Path) -> np.ndarray:
    """[N] bool."""
    return np.fromfile(folder / "done.u8", np.uint8) == 1


def _complete(folder: Path, header: dict[str, int]) -> bool:
    return _sound(folder, header) and bool(_done(folder).all())


def _read_only(folder: Path, header: dict[str, int]) -> bool:
    """Whether someone else keeps this store. It is then used as it is, though pictures may be missing."""
    return _sound(folder, header) and not os.access(folder, os.W_OK)


def _create(folder: Path, header: dict[str, int]) -> None:
    """Files of the right lengths, and nothing done. The header comes last: without it there is no store."""
    for name in ("header.json", *_lengths(header), BAD_PICTURES):
        (folder / name).unlink(missing_ok=True)
    lengths = _lengths(header)
    with (folder / "pixels.u8").open("wb") as file:
        file.truncate(lengths["pixels.u8"])  # takes no room until it is written to
    _replace(folder / "done.u8", bytes(lengths["done.u8"]))
    _replace(folder / "header.json", json.dumps(header).encode())


def _replace(path: Path, data: bytes) -> None:
    """All of a file or nothing, even if the power fails."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def _map(folder: Path, header: dict[str, int]) -> np.ndarray:
    shape = (header["pictures"], header["size"], header["size"], 3)
    if not header["pictures"]:
        return np.zeros(shape, np.uint8)  # an empty file cannot be mapped
    return np.memmap(folder / "pixels.u8", np.uint8, "r", shape=shape)


def _fill(folder: Path, header: dict[str, int], pictures: Pictures, workers: int) -> dict[int, str]:
    """Decodes all rows that are not done, and returns why some could not be."""
    size, reasons = header["size"], {}
    row_bytes = size * size * 3
    done = _done(folder).astype(np.uint8)
    pending = np.flatnonzero(done == 0)
    _check_room(folder, len(pending) * row_bytes, size)
    if not sys.stderr.isatty():
        print(f"decoding {len(pending)} of {len(done)} pictures into {folder}", file=sys.stderr, flush=True)
    pool = ThreadPoolExecutor(workers)
    with (
        (folder / "pixels.u8").open("r+b") as pixels,
        (folder / "done.u8").open("r+b") as marks,
        tqdm(total=len(pending), desc="decoding pictures", unit="picture", disable=None) as bar,
    ):

        def one(row: int) -> str | None:
            """Stores a picture. Returns what was wrong with it, if anything was."""
            try:
                _write_at(pixels.fileno(), decode(pictures.read(row), size), row * row_bytes)
            except BadImage as bad:
                return str(bad)
            return None

        def mark() -> None:
            """Pixels first, then the marks: should the power fail in between, work is repeated and nothing is wrong."""
            os.fsync(pixels.fileno())
            _write_at(marks.fileno(), done, 0)
            os.fsync(marks.fileno())

        marked = time.monotonic()
        try:
            for row, reason in _each(pool, one, pending):
                if reason is None:
                    done[row] = 1
                else:
                    reasons[row] = reason
                bar.update()
                if time.monotonic() - marked > SYNC_SECONDS:
                    mark()
                    marked = time.monotonic()
        finally:  # also when someone interrupts it
            pool.shutdown(cancel_futures=True)
            mark()
    listed = "".join(f"{pictures.name(row)}\t{reason}\n" for row, reason in reasons.items())
    _replace(folder / BAD_PICTURES, listed.encode(errors="backslashreplace"))
    return reasons


def _each(
    pool: ThreadPoolExecutor, job: Callable[[int], str | None], rows: np.ndarray
) -> Iterator[tuple[int, str | None]]:
    """Rows and their results, in order. Only some jobs exist at a time, as there may be millions of rows."""
    under_way: collections.deque[tuple[int, Future[str | None]]] = collections.deque()
    for row in map(int, rows):
        under_way.append((row, pool.submit(job, row)))
        if len(under_way) == UNDER_WAY:
            first, future = under_way.popleft()
            yield first, future.result()
    for row, future in under_way:
        yield row, future.result()


def _write_at(file: int, array: np.ndarray, place: int) -> None:
    """Writes an array of bytes into an open file. (A full disk raises here; through mapped memory it would crash.)"""
    left = array.reshape(-1).data
    while left:
        written = os.pwrite(file, left, place)
        left, place = left[written:], place + written


def _check_room(folder: Path, needed: int, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"decoded pictures need {needed / 1e9:.1f} GB, but {folder} has {free / 1e9:.1f} GB free; set"
            f" data.cache_dir to a larger disk, or a data.image_size smaller than {size}"
        )


@functools.cache
def _readers() -> ThreadPoolExecutor:
    """More than there are cores: they mostly wait for the disk."""
    return ThreadPoolExecutor(READERS, "rows")


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array to be filled that begins where JAX wants it: what is on a CPU anyway is then not copied once more."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    room = np.empty(size + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + size].view(dtype).reshape(shape)


class Rows:
    """Some rows of a stored array, as `Images`. Many rows are gathered by several threads, so that reads overlap."""

    def __init__(self, array: np.ndarray, rows: np.ndarray):
        """array [M, ...]; rows [N], integers from 0 to M - 1."""
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(array):
            raise ValueError(f"rows {rows.min()} to {rows.max()} of an array of {len(array)}")
        self._array, self._rows = array, rows
        self._row_bytes = int(np.prod(array.shape[1:])) * array.itemsize
        self._file: int | None = None
        if isinstance(array, np.memmap) and array.flags.c_contiguous and self._row_bytes >= LARGE_ROW:
            whole = array
            while isinstance(whole.base, np.memmap):
                whole = whole.base
            self._start = whole.offset + array.ctypes.data - whole.ctypes.data
            self._file = os.open(str(whole.filename), os.O_RDONLY)
            weakref.finalize(self, os.close, self._file)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self._rows), *self._array.shape[1:])

    @property
    def dtype(self) -> np.dtype:
        return self._array.dtype

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Rows by a slice or an integer array of any shape [...] -> [..., *shape[1:]], a copy."""
        wanted = self._rows[rows]
        flat = wanted.reshape(-1)
        out = aligned((len(flat), *self.shape[1:]), self.dtype)
        step = max(1, READ_BYTES // max(1, self._row_bytes))
        starts = range(0, len(flat), step)

        def fetch(start: int) -> None:
            self._fetch(flat[start : start + step], out[start : start + step])

        if len(starts) > 1:
            list(_readers().map(fetch, starts))
        elif starts:
            fetch(0)
        return out.reshape(*wanted.shape, *self.shape[1:])

    def _fetch(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Copies rows [B] of the array to out [B, ...]."""
        if self._file is None:
            # "clip" only to write straight into `out`: no row is outside.
            np.take(self._array, rows, axis=0, out=out, mode="clip")
            return
        # Large rows are read, not copied out of mapped memory: that would fetch them from disk page by page, in three
        # times the time.
        for row, place in zip(rows.tolist(), out):
            _read_at(self._file, place, self._start + row * self._row_bytes)


def _read_at(file: int, array: np.ndarray, place: int) -> None:
    left = array.reshape(-1).view(np.uint8).data
    while left:
        read = os.preadv(file, [left], place)
        if not read:
            raise OSError("a stored array has become shorter than it was")
        left, place = left[read:], place + read
