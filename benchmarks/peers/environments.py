"""A virtual environment for each peer, made when first asked for, and a peer's script run in its own.

    python -m benchmarks.peers.environments          # makes them all

Standard library only. What cannot be installed or run is told by its reason, and the others go on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements"
ENVIRONMENTS = HERE.parent / ".venvs"
SCRIPTS = {
    "torch": "torch_loop.py",
    "pfl": "pfl_peer.py",
    "flower": "flower_peer.py",
    "fedjax": "fedjax_peer.py",
    "tff": "tff_peer.py",
}


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a peer is not in the table. Short enough for a cell."""

    reason: str


def why(output: str) -> str:
    """The line of a failed command's output that says most: the first error, as others follow from it."""
    lines = [line.strip() for line in output.splitlines() if re.search(r"\w", line)] or ["no output"]
    errors = [line for line in lines if re.match(r"ERROR(?!: Ignored)|[\w.]*(Error|Exception)\b", line)]
    return (errors or lines[-1:])[0][:300]


def python_of(peer: str) -> Path | Failure:
    """The Python of a peer's environment. Made again whenever its requirements change."""
    folder = ENVIRONMENTS / peer
    python, stamp = folder / "bin" / "python", folder / "installed"
    needed, without = REQUIREMENTS / f"{peer}.txt", REQUIREMENTS / f"{peer}-no-deps.txt"
    files = [path for path in (needed, without) if path.exists()]
    wanted = "".join(path.read_text() for path in files)
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"installing {peer} into {folder}", flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    (folder.parent / ".gitignore").write_text("*\n")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    commands = [[sys.executable, "-m", "venv", "--clear", str(folder)], [*pip, "--requirement", str(needed)]]
    if without in files:
        commands.append([*pip, "--no-deps", "--requirement", str(without)])
    for command in commands:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            return Failure(f"not installed: {why(done.stdout)}")
    stamp.write_text(wanted)
    return python


def run_peer(
    peer: str, folder: Path, rounds: int, threads: int, variant: str | None = None, timeout: float = 3600.0
) -> dict[str, Any] | Failure:
    """What a peer's script prints (see common.report) for so many rounds of the workload in `folder`."""
    python = python_of(peer)
    if isinstance(python, Failure):
        return python
    command = [str(python), str(HERE / SCRIPTS[peer]), str(folder)]
    command += [f"--rounds={rounds}", f"--threads={threads}"]
    command += [] if variant is None else [f"--variant={variant}"]
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # A session of its own, so that whatever a peer leaves running can be ended with it.
    process = subprocess.Popen(
        command,
        env=surroundings,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return Failure(f"not done after {timeout:.0f} s")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        return Failure(f"failed: {why(errors)}")
    try:
        return json.loads(output.splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        return Failure(f"printed no result: {why(output)}")


def main() -> None:
    for peer in SCRIPTS:
        print(f"{peer}: {python_of(peer)}")


if __name__ == "__main__":
    main()
