"""Where things are kept that take long to make, and how they are written so that no reader sees a half."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import logging
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from tqdm import tqdm

log = logging.getLogger(__name__)

Item = TypeVar("Item")


def cache_folder(cache_dir: str = "") -> Path:
    """The named folder, else $FEDSS_CACHE, else $XDG_CACHE_HOME/fedss_jax, else ~/.cache/fedss_jax."""
    named = cache_dir or os.environ.get("FEDSS_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(named).expanduser() if named else Path(home, "fedss_jax")


def short_digest(*parts: object) -> str:
    """16 hexadecimal digits that change with the parts."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def load_arrays(path: Path) -> dict[str, np.ndarray] | None:
    """What `save_arrays` wrote, or None if it is not there or damaged."""
    if not os.path.isfile(path):
        return None
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as stored:
            return dict(stored)
    except Exception as error:  # whatever is wrong with it, the remedy is the same
        log.warning("cache file %s is damaged and made again: %s", path, error)
        return None


def save_arrays(path: Path, **arrays: np.ndarray) -> None:
    """Writes a .npz file at once: a reader sees the whole of it or none. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        part = Path(folder, path.name)
        np.savez(part, **arrays)  # type: ignore[arg-type]  # to its stubs, every name is an option
        os.replace(part, path)


def try_to_save(path: Path, **arrays: np.ndarray) -> None:
    """As `save_arrays`, for what the run can do without."""
    try:
        save_arrays(path, **arrays)
    except OSError as error:
        log.warning("cannot write %s, going on without it: %s", path, error)


@contextlib.contextmanager
def alone(folder: Path, doing: str) -> Iterator[None]:
    """Waits while another process works in the folder; the lock goes when its process does, however it ends.

    Where there are no locks (some network disks), both do the same work, to the same end.
    """
    with (folder / "lock").open("w") as file:
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"waiting for another run that is {doing} ({folder})", file=sys.stderr, flush=True)
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def progress(items: Sequence[Item], doing: str, unit: str, kept_in: Path) -> Iterable[Item]:
    """The items, with a bar on a terminal and otherwise a line that says what takes so long."""
    if items and not sys.stderr.isatty():
        print(f"{doing}: {len(items)} {unit}s (once; cached in {kept_in})", file=sys.stderr, flush=True)
    return tqdm(items, doing, unit=unit, disable=None)  # None: off if no terminal
