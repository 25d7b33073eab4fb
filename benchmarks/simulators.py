"""Rounds per second against other simulators of federated learning, and against plain PyTorch, all on the same work.

    python -m benchmarks.simulators [lr] [cnn] [head] [mobilenet] [--repeats N]

Everyone starts from the same parameters and sees the same clients, examples and classes in the same order (see
workloads.py), on as many cores; losses must agree. Each run is a process of its own; runs take turns, and what is shown
is the median over rounds and repeats. Start-up is imports, data, and compiling.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import results, workloads
from benchmarks.peers.environments import Failure, run_peer, why

THREADS = len(os.sched_getaffinity(0))
TOLERANCE = 2e-3  # of the last round's loss, relative


class Plan(NamedTuple):
    rounds: int
    rounds_per_dispatch: int  # of this project's engine
    runs: tuple[tuple[str, str], ...]  # peer and variant
    ours: tuple[str, ...] = ("",)  # options of the engine; the first is what the others are compared with


PROCESSES = f"processes={THREADS}"
FRAMEWORKS = (("pfl", "processes"), ("flower", "ray"), ("fedjax", "jit"), ("tff", "iterator"))
PLANS = {
    "lr": Plan(40, 10, (("torch", "rows"), ("torch", "batched"), ("torch", "processes"), *FRAMEWORKS)),
    "cnn": Plan(
        4, 1, (("torch", "rows"), ("torch", "batched"), ("torch", "processes"), *FRAMEWORKS), ours=("", PROCESSES)
    ),
    "head": Plan(
        12, 4, (("torch", "rows"), ("torch", "batched"), ("torch", "processes"), ("torch", "full"), *FRAMEWORKS)
    ),
    "mobilenet": Plan(4, 1, (("torch", "rows"), ("torch", "processes")), ours=("", PROCESSES)),
}
WARM_UP = 1  # rounds; this project's engine: dispatches


def run_engine(folder: Path, plan: Plan, option: str) -> dict[str, Any] | Failure:
    command = [sys.executable, "-m", "benchmarks.engine", str(folder), f"--rounds={plan.rounds}"]
    command += [f"--threads={THREADS}", f"--rounds-per-dispatch={plan.rounds_per_dispatch}"]
    command += [f"--{option}"] if option else []
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return Failure(why(done.stderr))
    return json.loads(done.stdout.splitlines()[-1])


def measure(name: str, repeats: int) -> dict[str, list[dict[str, Any] | Failure]]:
    """All runs of a workload, by peer and variant."""
    plan = PLANS[name]
    found: dict[str, list[dict[str, Any] | Failure]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = workloads.write(name, Path(temporary, name), rounds=plan.rounds)
        for repeat in range(repeats):
            ours = [("fedss_jax", option.replace("=", " ")) for option in plan.ours]
            for place, (peer, variant) in enumerate([*ours, *plan.runs]):
                label = f"{peer} {variant}".strip()
                earlier = found.setdefault(label, [])
                if any(isinstance(run, Failure) for run in earlier):
                    continue
                print(f"{name}: {label}, run {repeat + 1} of {repeats}", file=sys.stderr, flush=True)
                if place < len(ours):
                    earlier.append(run_engine(folder, plan, plan.ours[place]))
                else:
                    earlier.append(run_peer(peer, folder, plan.rounds, THREADS, variant))
    return found


def summarize(name: str, found: dict[str, list[dict[str, Any] | Failure]]) -> list[dict[str, Any]]:
    """A row for each peer: seconds a round, how many times as long as ours, start-up, and the last loss."""
    rows: list[dict[str, Any]] = []
    for label, runs in found.items():
        good = [run for run in runs if not isinstance(run, Failure)]
        if len(good) < len(runs):
            rows.append({"peer": label, "failure": next(run.reason for run in runs if isinstance(run, Failure))})
            continue
        warm_up = WARM_UP * (PLANS[name].rounds_per_dispatch if label.startswith("fedss_jax") else 1)
        medians = [float(np.median(run["round_seconds"][warm_up:])) for run in good]
        rows.append(
            {
                "peer": label,
                "version": good[0]["version"],
                "seconds_a_round": float(np.median(medians)),
                "fastest": min(medians),
                "slowest": max(medians),
                "startup_seconds": float(np.median([run["startup_seconds"] for run in good])),
                "first_round_seconds": float(np.median([run["round_seconds"][0] for run in good])),
                "last_loss": good[0]["losses"][-1],
            }
        )
    ours = rows[0]
    for row in rows:
        if "failure" not in row and "failure" not in ours:
            row["times_ours"] = row["seconds_a_round"] / ours["seconds_a_round"]
            row["loss_agrees"] = abs(row["last_loss"] / ours["last_loss"] - 1) < TOLERANCE
    return rows


def show(rows: list[dict[str, Any]]) -> str:
    header = ("", "ms a round", "(from - to)", "times ours", "start-up s", "last loss")
    cells = []
    for row in rows:
        if "failure" in row:
            cells.append((row["peer"], f"failed: {row['failure']}", "", "", "", ""))
            continue
        spread = f"{1e3 * row['fastest']:,.1f} - {1e3 * row['slowest']:,.1f}"
        loss = f"{row['last_loss']:.5f}" + ("" if row.get("loss_agrees", True) else " DIFFERS")
        times = f"{row['times_ours']:.2f}" if "times_ours" in row else "-"
        name = f"{row['peer']} ({row['version']})"
        cells.append(
            (name, f"{1e3 * row['seconds_a_round']:,.1f}", spread, times, f"{row['startup_seconds']:.1f}", loss)
        )
    return results.table(header, cells)


def main() -> None:
    parser = results.parser(__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PLANS)}; all if none is given")
    parser.add_argument("--repeats", type=int, default=3)
    flags = parser.parse_args()
    if unknown := set(flags.names) - set(PLANS):
        parser.error(f"there is no workload {', '.join(sorted(unknown))}; choose from {', '.join(PLANS)}")
    for name in flags.names or PLANS:
        rows = summarize(name, measure(name, flags.repeats))
        work = workloads.WORKLOADS[name]
        print(
            f"{name}: {work.clients_per_round} of {work.num_clients} clients a round, {work.examples_per_client}"
            f" examples each, batches of {work.batch_size}, {work.num_classes:,} classes; {THREADS} cores\n{show(rows)}"
        )
        results.save(flags.out, f"simulators_{name}", rows)


if __name__ == "__main__":
    main()
