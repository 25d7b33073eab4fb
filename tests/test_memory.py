"""Memory that was freed is had again without a page fault, from any thread."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fedss_jax import memory

FAULTS = """
import resource, sys, threading
from fedss_jax import memory

if sys.argv[1] == "asks":
    memory.keep()

def fill():
    b"x" * 2**28  # larger than what an arena of a thread's own can hold

def in_thread():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    thread = threading.Thread(target=fill)
    thread.start()
    thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(in_thread(), in_thread())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc is asked")
@pytest.mark.parametrize("way", ["asks", "is told"])
def test_memory_is_touched_for_the_first_time_only_once(way):
    environment = dict(os.environ) if way == "asks" else memory.kept_by(dict(os.environ))
    done = subprocess.run([sys.executable, "-c", FAULTS, way], env=environment, capture_output=True, check=True)
    first, second = map(int, done.stdout.split())
    assert first > 2**28 / 2**16 and second < first / 10
