"""One run in a folder at a time, and a dead one holds nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedss_jax import lock
from fedss_jax.types import UserError

ROOT = Path(__file__).parent.parent
HOLD = "import sys; from pathlib import Path; from fedss_jax import lock; held = lock.take(Path(sys.argv[1]));"
HOLD += "print('held', flush=True); sys.stdin.read()"


def hold(folder, **options):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )
    assert process.stdout.readline() == "held\n"
    return process


def test_a_folder_is_held_until_its_owner_lets_go_or_dies(tmp_path):
    with hold(tmp_path) as owner:
        with pytest.raises(UserError, match=f"{tmp_path} is in use by process {owner.pid} on .*--workdir"):
            lock.take(tmp_path)
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        with lock.take(tmp_path):
            assert (tmp_path / lock.FILE).read_text().startswith(f"process {os.getpid()} on ")
            with pytest.raises(UserError, match="is in use by"):
                lock.take(tmp_path)
        lock.take(tmp_path).close()


def test_a_lock_is_passed_on_to_the_process_that_needs_it(tmp_path):
    with (
        lock.take(tmp_path) as held,
        hold(tmp_path, pass_fds=[held.fileno()], env=os.environ | lock.for_child(held)) as child,
    ):
        held.close()  # whoever started it may die
        with pytest.raises(UserError, match=f"is in use by process {child.pid}"):
            lock.take(tmp_path)
        child.stdin.close()
        child.wait()
        lock.take(tmp_path).close()
