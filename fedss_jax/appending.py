"""Files that grow line by line, on a disk that may be full for a while."""

from __future__ import annotations

import os
from pathlib import Path


class Appending:
    """What cannot be written now waits, and is written later: all of it, once and in order."""

    def __init__(self, path: Path, start: bytes = b""):
        """start: what the file has to begin with; all else that is in it goes."""
        self.path = path
        self._waiting: list[bytes] = []
        temporary = path.with_name(f".{path.name}.tmp")
        with temporary.open("wb") as file:
            file.write(start)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        self._size = len(start)

    def add(self, content: bytes) -> None:
        self._waiting.append(content)

    def write(self, *, durable: bool = False) -> None:
        """All that waits. durable: so that not even a power failure takes it away. Raises OSError."""
        if not self._waiting and not durable:
            return
        content = b"".join(self._waiting)
        with self.path.open("ab") as file:
            if file.tell() > self._size:  # half of what could not be written the last time
                file.truncate(self._size)
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        self._size += len(content)
        self._waiting.clear()
