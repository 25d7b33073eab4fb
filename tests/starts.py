"""Starts launch.py again and again without importing all of it each time: what test_resume.py kills.

Reads a line of JSON for each start: {"arguments": [...], "environment": {...}, "log": FILE}. Forks a process of its own
for it before JAX has looked for devices, prints its number, and how it ended when it has.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys

import fedss_jax.plan
import fedss_jax.score
import fedss_jax.sweep
import fedss_jax.train  # noqa: F401


def run(arguments, environment, log):
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that run in a shell's background have it ignored
    with open(log, "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["launch.py", *arguments]
    runpy.run_path("launch.py", run_name="__main__")


if __name__ == "__main__":
    for line in sys.stdin:
        number = os.fork()
        if not number:
            run(**json.loads(line))
            sys.exit()
        print(number, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]), flush=True)
