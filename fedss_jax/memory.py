"""Memory that has been freed stays with the process, for the next array.

On a CPU, XLA asks malloc for a program's working memory each time that it runs. glibc gives large pieces back to the
system as soon as they are free, so that every round would begin with a page fault for each of its pages.
"""

from __future__ import annotations

import ctypes

# By malloc.h's numbers and the names of GLIBC_TUNABLES. Everything from one heap that only grows: other arenas, which
# threads would have, cannot hold large pieces.
SETTINGS = {"mmap_max": (-4, 0), "trim_threshold": (-1, 2**31 - 1), "arena_max": (-8, 1)}


def keep() -> None:
    """From now on; to be called before there are threads. Without glibc nothing happens."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for number, value in SETTINGS.values():
            mallopt(number, value)


def kept_by(environment: dict[str, str]) -> dict[str, str]:
    """The environment of a process that is to do the same, whatever it is written in."""
    tunables = ":".join(f"glibc.malloc.{name}={value}" for name, (_, value) in SETTINGS.items())
    return environment | {"GLIBC_TUNABLES": tunables}
