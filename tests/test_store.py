"""The store of decoded pictures: what is in it, and that nothing that happens to it does harm."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedss_jax.data import store
from fedss_jax.data.decode import decode
from fedss_jax.data.index import BadImage
from fedss_jax.types import UserError

SIZE = 8


def encoded(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 256, (12, 10, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


class Pictures:
    """Made-up pictures, some of them bad; keeps account of what was read."""

    def __init__(self, count: int, bad: tuple[int, ...] = (), delay: float = 0.0):
        self.count, self.bad, self.delay, self.reads = count, set(bad), delay, []

    def __len__(self) -> int:
        return self.count

    def read(self, row: int) -> bytes:
        self.reads.append(row)
        time.sleep(self.delay)
        if row in self.bad:
            raise BadImage("missing")
        return encoded(row)

    def name(self, row: int) -> str:
        return f"picture{row}.png"

    def fingerprint(self) -> str:
        return f"count{self.count}"


def build(pictures: Pictures, folder: Path, workers: int = 2) -> store.Built:
    return store.build(pictures, SIZE, str(folder), workers)


def expected(count: int) -> np.ndarray:
    return np.stack([decode(encoded(row), SIZE) for row in range(count)])


def folder_of(tmp_path: Path) -> Path:
    (folder,) = tmp_path.glob("pictures-*")
    return folder


@pytest.mark.parametrize("workers", [0, 1, 5])
def test_every_picture_is_in_its_row(tmp_path, workers):
    images, ok, reasons = build(Pictures(30), tmp_path, workers)
    assert images.shape == (30, SIZE, SIZE, 3) and images.dtype == np.uint8
    assert (images == expected(30)).all() and ok.all() and not reasons
    assert folder_of(tmp_path) == store.store_folder(Pictures(30), SIZE, str(tmp_path))


def test_more_pictures_than_are_under_way_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "UNDER_WAY", 4)
    monkeypatch.setattr(store, "SYNC_SECONDS", 0.0)
    assert (build(Pictures(30), tmp_path).images == expected(30)).all()


def test_no_pictures(tmp_path):
    for _ in range(2):
        images, ok, reasons = build(Pictures(0), tmp_path)
        assert images.shape == (0, SIZE, SIZE, 3) and len(ok) == 0 and not reasons


def test_a_complete_store_opens_without_a_look_at_the_pictures(tmp_path):
    build(Pictures(20), tmp_path)
    times = {path: path.stat().st_mtime_ns for path in folder_of(tmp_path).iterdir()}
    again = Pictures(20)
    assert (build(again, tmp_path).images == expected(20)).all()
    assert not again.reads
    assert times == {path: path.stat().st_mtime_ns for path in folder_of(tmp_path).iterdir()}


def test_bad_pictures_are_listed_and_tried_again_until_they_are_mended(tmp_path):
    images, ok, reasons = build(Pictures(20, bad=(3, 11)), tmp_path)
    assert reasons == {3: "missing", 11: "missing"}
    assert np.flatnonzero(~ok).tolist() == [3, 11] and not images[[3, 11]].any()
    listed = folder_of(tmp_path) / store.BAD_PICTURES
    assert listed.read_text() == "picture3.png\tmissing\npicture11.png\tmissing\n"

    again = Pictures(20, bad=(11,))
    images, ok, reasons = build(again, tmp_path)
    assert sorted(again.reads) == [3, 11] and reasons == {11: "missing"} and ok.sum() == 19
    assert (images[3] == decode(encoded(3), SIZE)).all() and listed.read_text() == "picture11.png\tmissing\n"

    assert build(Pictures(20), tmp_path).ok.all() and not listed.read_text()
    last = Pictures(20)
    build(last, tmp_path)
    assert not last.reads


@pytest.mark.parametrize("damage", ["format", "json", "no header", "short pixels", "no marks"])
def test_a_store_that_is_not_sound_is_made_again(tmp_path, damage):
    build(Pictures(10), tmp_path)
    folder = folder_of(tmp_path)
    header = folder / "header.json"
    if damage == "format":
        header.write_text(json.dumps({**json.loads(header.read_text()), "format": store.FORMAT - 1}))
    elif damage == "json":
        header.write_bytes(b"\xff{")
    elif damage == "no header":
        header.unlink()
    elif damage == "short pixels":
        os.truncate(folder / "pixels.u8", 100)
    else:
        (folder / "done.u8").unlink()
    again = Pictures(10)
    assert (build(again, tmp_path).images == expected(10)).all()
    assert sorted(again.reads) == list(range(10))


def test_sizes_and_lists_have_stores_of_their_own(tmp_path):
    build(Pictures(3), tmp_path)
    build(Pictures(4), tmp_path)
    store.build(Pictures(3), SIZE + 1, str(tmp_path), 1)
    assert len(list(tmp_path.glob("pictures-*"))) == 3


KILLED = """
import sys
sys.path.insert(0, {tests!r})
from fedss_jax.data import store
from test_store import Pictures, build
store.SYNC_SECONDS = 0.05
build(Pictures(400, delay=0.005), {folder!r})
"""


def test_a_build_that_is_killed_goes_on_where_it_was(tmp_path):
    code = KILLED.format(tests=str(Path(__file__).parent), folder=str(tmp_path / "killed"))
    process = subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.DEVNULL, cwd=Path(__file__).parent.parent
    )
    done = np.zeros(400, np.uint8)
    try:
        limit = time.monotonic() + 60
        while not done.sum() > 50 and time.monotonic() < limit:
            assert process.poll() is None
            time.sleep(0.01)
            for marks in (tmp_path / "killed").glob("*/done.u8"):
                done = np.fromfile(marks, np.uint8)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = np.fromfile(next((tmp_path / "killed").glob("*/done.u8")), np.uint8)
    assert 50 < done.sum() < 400

    resumed = Pictures(400)
    images, ok, _ = build(resumed, tmp_path / "killed")
    assert sorted(resumed.reads) == np.flatnonzero(done == 0).tolist()
    assert ok.all() and (images == build(Pictures(400), tmp_path / "whole").images).all()


def test_an_interrupted_build_keeps_what_it_has(tmp_path):
    class Interrupted(Pictures):
        def read(self, row: int) -> bytes:
            if row == 10:
                raise KeyboardInterrupt
            return super().read(row)

    with pytest.raises(KeyboardInterrupt):
        build(Interrupted(20), tmp_path, 1)
    again = Pictures(20)
    assert build(again, tmp_path).ok.all()
    assert min(again.reads) == 10


def test_two_builds_at_once_do_the_work_once(tmp_path, capfd):
    pictures = [Pictures(60, delay=0.002), Pictures(60, delay=0.002)]
    with ThreadPoolExecutor(2) as pool:  # locks are the files', so threads are as good as processes here
        built = list(pool.map(lambda p: build(p, tmp_path), pictures))
    for images, ok, _ in built:
        assert ok.all() and (images == expected(60)).all()
    assert sum(len(p.reads) for p in pictures) == 60


def test_a_disk_that_is_too_small_is_said_before_anything_is_decoded(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    pictures = Pictures(10)
    with pytest.raises(UserError, match=r"need 0.0 GB, but .* has 0.0 GB free; set data.cache_dir .*data.image_size"):
        build(pictures, tmp_path)
    assert not pictures.reads


def test_a_disk_that_fills_up_meanwhile_is_one_line(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(UserError, match="No space left on device; make room or set data.cache_dir"):
        build(Pictures(3), tmp_path)


def test_a_cache_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot keep decoded pictures in .*; make room or set data.cache_dir"):
        build(Pictures(3), tmp_path / "file")


def test_a_store_of_someone_elses_is_used_as_it_is(tmp_path, monkeypatch):
    build(Pictures(10, bad=(4,)), tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    pictures = Pictures(10)
    _, ok, reasons = build(pictures, tmp_path)
    assert not pictures.reads and ok.sum() == 9 and "cannot be written to" in reasons[4]


@pytest.mark.parametrize("large_row", [1, 1 << 30])  # read from the file, or copied from mapped memory
def test_rows_are_a_view_of_some_rows(tmp_path, monkeypatch, large_row):
    monkeypatch.setattr(store, "LARGE_ROW", large_row)
    stored = build(Pictures(30), tmp_path).images
    numbers = np.array([7, 3, 3, 29, 0])
    rows = store.Rows(stored, numbers)
    assert len(rows) == 5 and rows.shape == (5, SIZE, SIZE, 3) and rows.dtype == np.uint8
    whole = np.asarray(stored)[numbers]
    wanted = (slice(None), slice(1, 3), slice(0, 0), np.array([[4, 0], [1, -1]]), np.array([], int), np.int64(2), 2)
    for key in wanted:
        assert type(rows[key]) is np.ndarray
        np.testing.assert_array_equal(rows[key], whole[key])
    with pytest.raises(IndexError):
        rows[np.array([5])]
    with pytest.raises(ValueError, match="rows 0 to 30"):
        store.Rows(stored, np.arange(31))
    assert store.Rows(stored, np.arange(0))[:].shape == (0, SIZE, SIZE, 3)


def test_rows_of_any_mapped_array(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "LARGE_ROW", 1)
    np.save(tmp_path / "array.npy", np.arange(600, dtype=np.float32).reshape(20, 5, 6))
    array = np.load(tmp_path / "array.npy", mmap_mode="r")
    for view in (array, array[3:], array[3:][2:, ..., None], array[::2], array[:, :2], array.transpose(1, 0, 2)):
        rows = np.arange(len(view))[::-1]
        np.testing.assert_array_equal(store.Rows(view, rows)[:], np.asarray(view)[rows])


def test_a_file_that_was_cut_off_is_an_error_and_no_crash(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "LARGE_ROW", 1)
    rows = store.Rows(build(Pictures(30), tmp_path).images, np.arange(30))
    os.truncate(folder_of(tmp_path) / "pixels.u8", 1000)
    with pytest.raises(OSError, match="shorter than it was"):
        rows[:]


def test_rows_close_their_file(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "LARGE_ROW", 1)
    rows = store.Rows(build(Pictures(3), tmp_path).images, np.arange(3))
    file = rows._file
    assert os.fstat(file).st_size == 3 * SIZE * SIZE * 3
    del rows
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)


@pytest.mark.parametrize("mapped", [True, False])
def test_rows_are_right_when_threads_ask_at_once(tmp_path, monkeypatch, mapped):
    monkeypatch.setattr(store, "READ_BYTES", 64)  # many jobs
    array = np.random.default_rng(0).integers(0, 256, (500, 4, 4, 3), np.uint8)
    if mapped:
        monkeypatch.setattr(store, "LARGE_ROW", 1)
        np.save(tmp_path / "array.npy", array)
        array = np.load(tmp_path / "array.npy", mmap_mode="r")
    rows = store.Rows(array, np.arange(500)[::-1])
    start = threading.Barrier(8)

    def ask(seed: int) -> bool:
        wanted = np.random.default_rng(seed).integers(0, 500, (10, 30))
        start.wait()
        return all((rows[wanted] == array[::-1][wanted]).all() for _ in range(5))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(8)))


def test_jobs_are_made_as_they_are_needed():
    made = []

    class Pool:
        def submit(self, job, row):
            made.append(row)
            future: Future[None] = Future()
            future.set_result(job(row))
            return future

    results = store._each(Pool(), lambda row: None, np.arange(10 * store.UNDER_WAY))
    assert next(results) == (0, None) and len(made) == store.UNDER_WAY
    assert len(list(results)) == 10 * store.UNDER_WAY - 1
