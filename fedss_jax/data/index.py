"""What a source finds on disk: labelled pictures that nobody has opened yet, and who holds what."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

MAX_BYTES = 1 << 28  # of a picture's file


class BadImage(Exception):
    """A picture that cannot be used; the message says why, without naming the picture."""


class Pictures(Protocol):
    """Encoded pictures by their number, 0 .. len - 1."""

    def __len__(self) -> int: ...

    def read(self, row: int) -> bytes:
        """The file's bytes. Raises BadImage."""

    def name(self, row: int) -> str:
        """What to call it in a message."""

    def fingerprint(self) -> str:
        """Changes when the list of pictures does."""


class Part(NamedTuple):
    """The training or the test part: which pictures, and their classes."""

    rows: np.ndarray  # [N] of `Index.pictures`
    labels: np.ndarray  # [N] int32


@dataclasses.dataclass(frozen=True)
class Index:
    """A data set before its pictures are decoded. Fields as in `Dataset`."""

    task: str
    num_classes: int
    pictures: Pictures  # all of them, train and test, so that one store serves every split
    train: Part
    clients: Sequence[np.ndarray]  # for each client, the places in `train` that it holds
    test: Part
    notes: Sequence[str] = ()  # what was left out or renumbered, for people to read
    train_names: Sequence[str] = ()  # what class 0, 1, ... is called; empty: by its number
    test_names: Sequence[str] = ()  # the same for the test part, whose classes may be others


@dataclasses.dataclass(frozen=True)
class Files:
    """Pictures in files below one folder. Nothing outside that folder is ever opened."""

    root: Path
    names: Sequence[Any] | np.ndarray  # [N] paths below the root: str, or bytes where there are many

    @functools.cached_property
    def _real_root(self) -> Path:
        return self.root.resolve()

    def __len__(self) -> int:
        return len(self.names)

    def name(self, row: int) -> str:
        return os.fsdecode(self.names[row])

    def read(self, row: int) -> bytes:
        try:
            # A link may point anywhere, and a name may climb out with "..": what counts is where it ends up.
            real = (self.root / self.name(row)).resolve(strict=True)
            if not real.is_relative_to(self._real_root):
                raise BadImage("leads outside the data folder")
            status = real.stat()
            if not stat.S_ISREG(status.st_mode):
                raise BadImage("not a file")  # reading a pipe would never end
            if status.st_size > MAX_BYTES:
                raise BadImage(f"too large ({status.st_size:,} bytes; at most {MAX_BYTES:,} are read)")
            return real.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise BadImage("missing") from None
        except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links in a circle; ValueError: a NUL
            raise BadImage(f"cannot be read ({error})") from None

    def exists(self, row: int) -> bool:
        return os.path.isfile(self.root / self.name(row))

    def take(self, rows: np.ndarray) -> Files:
        """The pictures of these rows, in this order."""
        return Files(self.root, np.asarray(self.names)[rows])

    def fingerprint(self) -> str:
        return self._fingerprint

    @functools.cached_property
    def _fingerprint(self) -> str:
        names = np.asarray(self.names)
        digest = hashlib.blake2b(os.fsencode(self._real_root), digest_size=8)
        digest.update(f"{names.dtype}{names.shape}".encode())
        for start in range(0, len(names), 1 << 20):  # in pieces: the list may be a memory-mapped file
            digest.update(np.ascontiguousarray(names[start : start + (1 << 20)]).data)
        return digest.hexdigest()


def packed(names: Sequence[str]) -> np.ndarray:
    """Names [N] as bytes: in a tenth of the memory that a list of strings takes, here and on the way to a worker."""
    return np.array([os.fsencode(name) for name in names], dtype=np.bytes_)
