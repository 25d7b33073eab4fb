"""A folder to oneself: two runs in one folder would write over each other.

The kernel keeps the lock for the process and drops it when the process ends, however it ends: a dead owner holds none.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
from pathlib import Path
from typing import IO

from fedss_jax.types import UserError

FILE = ".lock"
INHERITED = "FEDSS_JAX_LOCK"  # names the open file of a lock that a process is started with


def take(folder: Path) -> IO[str]:
    """Raises if another has the folder. Closing what is returned lets go."""
    file = _inherited(folder) or (folder / FILE).open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with file:
            file.seek(0)
            owner = file.read().strip() or "another run"
        raise UserError(
            f"workdir {folder} is in use by {owner}; wait until it has ended, or choose another with --workdir"
        ) from None
    with contextlib.suppress(OSError):  # the lock holds without a name in it, too
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {platform.node()}\n")
        file.flush()
    return file


def for_child(held: IO[str]) -> dict[str, str]:
    """What to add to the environment of a process that is started with the lock in its pass_fds."""
    return {INHERITED: str(held.fileno())}


def _inherited(folder: Path) -> IO[str] | None:
    """The folder's lock, if the process that started this one has passed it on."""
    try:
        number = int(os.environ.get(INHERITED, ""))
        if os.path.samestat(os.fstat(number), os.stat(folder / FILE)):
            return os.fdopen(os.dup(number), "r+")
    except (ValueError, OSError):
        pass
    return None
