"""Starts launch.py again and again without importing all of it each time.

As a program it reads a line of JSON for each start, with the arguments of `run`. It forks a process for it before JAX
has looked for devices, prints its number, and how it ended when it has.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
QUICKLY = "--xla_cpu_use_fusion_emitters=false"  # for XLA_FLAGS: programs then compile in a third of the time


class Starter:
    """One process at a time."""

    def __init__(self, xla_flags: str = "", **environment: str):
        self._xla_flags, self._runs = xla_flags, 0  # the number of a process that was not waited for yet
        self._program = subprocess.Popen(
            [sys.executable, __file__],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, *arguments: str, out: Path, err: Path | None = None, devices: int = 1) -> int:
        """launch.py with these arguments. Returns the process's number. err: the same file as out if none is given."""
        told = {
            "arguments": arguments,
            "environment": {"XLA_FLAGS": f"{self._xla_flags} --xla_force_host_platform_device_count={devices}"},
            "out": str(out),
            "err": str(err or out),
        }
        self.end()
        print(json.dumps(told), file=self._program.stdin, flush=True)
        self._runs = int(self._program.stdout.readline())
        return self._runs

    def wait(self) -> int:
        """How it ended."""
        code = int(self._program.stdout.readline())
        self._runs = 0
        return code

    def end(self) -> None:
        """What still runs because a test has failed before it could wait."""
        if self._runs:
            os.kill(self._runs, signal.SIGKILL)
            self.wait()

    def close(self) -> None:
        self.end()
        self._program.stdin.close()
        self._program.wait(60)
        self._program.stdout.close()


def run(arguments: list[str], environment: dict[str, str], out: str, err: str) -> None:
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that run in a shell's background have it ignored
    for number, name in ((1, out), (2, err)):
        with open(name, "a") as file:
            os.dup2(file.fileno(), number)
    sys.argv = ["launch.py", *arguments]
    runpy.run_path("launch.py", run_name="__main__")


if __name__ == "__main__":
    import fedss_jax.plan
    import fedss_jax.score
    import fedss_jax.sweep
    import fedss_jax.train  # noqa: F401

    for line in sys.stdin:
        number = os.fork()
        if not number:
            run(**json.loads(line))
            sys.exit()
        print(number, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]), flush=True)
