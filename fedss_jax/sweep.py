"""Many runs of one config: every cell in a process and a folder of its own, and a table over all of them.

A config file that has `sweep(add)` calls `add(method="fedss", num_negatives=5, seed=0)` for each cell; the names are
config keys. Cells that differ only in their seed make one row of the table.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import queue
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from fedss_jax.config import resolve
from fedss_jax.metrics import refuse_another_run
from fedss_jax.report.summary import NAMES
from fedss_jax.types import UserError


class Cell(NamedTuple):
    settings: Mapping[str, Any]  # config key -> value, as add() got them
    config: Mapping[str, Any]  # the whole config that they make

    @property
    def name(self) -> str:
        """A folder's name, such as method=fedss,num_negatives=5,seed=0."""
        return ",".join(f"{key}={value}" for key, value in self.settings.items())

    @property
    def row(self) -> str:
        """Its row in the table: all but the seed."""
        shown = (v if k == "method" else f"{k}={v}" for k, v in self.settings.items() if k != "seed")
        return " ".join(map(str, shown))


def list_cells(config_file: ModuleType, config: Any) -> list[Cell]:
    """What the file's sweep(add) adds, each a checked copy of the config with its settings."""
    if not hasattr(config_file, "sweep"):
        raise UserError(
            f"{config_file.__file__} has no sweep(add); run it with --mode=train, or take one of configs/sweeps/"
        )
    cells: list[Cell] = []

    def add(**settings: Any) -> None:
        changed = config.copy_and_resolve_references()
        changed.update_from_flattened_dict(settings)
        cells.append(Cell(settings, resolve(changed).to_dict()))

    config_file.sweep(add)
    return cells


def sweep(command: Sequence[str], cells: Sequence[Cell], workdir: Path, jobs: int) -> None:
    """Runs every cell that is not done yet, prints the table and writes it to table.md."""
    for cell in cells:
        refuse_another_run(workdir / cell.name, cell.config)
    try:
        workdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"workdir {workdir} cannot be made ({error.strerror}); choose another with --workdir") from None
    failed = run(command, cells, workdir, jobs)
    made = table(cells, workdir)
    (workdir / "table.md").write_text(made + "\n")
    print(f"{made}\n\n{len(cells) - len(failed)} of {len(cells)} runs are done; {workdir} has them and table.md")
    if failed:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
        raise UserError(f"{len(failed)} of {len(cells)} runs failed: {reasons}")


def run_cell(command: Sequence[str], cell: Cell, folder: Path, cores: set[int]) -> str | None:
    """Runs a cell unless it is done. Returns what went wrong, if anything did; its output is in log.txt."""
    if (folder / "summary.json").exists():
        return None
    folder.mkdir(parents=True, exist_ok=True)
    settings = [f"--config.{key}={value}" for key, value in cell.settings.items()]
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(
            [*command, *settings, f"--workdir={folder}"], stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
        if cores:
            # A run that has a core to itself gets more done than two runs that share two.
            os.sched_setaffinity(process.pid, cores)
        code = process.wait()
    if code == 0:
        return None
    said = (folder / "log.txt").read_text().strip().splitlines()
    return said[-1] if said else f"exit code {code}"


def run(command: Sequence[str], cells: Sequence[Cell], workdir: Path, jobs: int) -> dict[str, str]:
    """Runs all cells, so many at a time. Returns the failed ones: name -> reason."""
    available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    shares: queue.Queue[set[int]] = queue.Queue()
    for job in range(jobs):
        shares.put(set(available[job::jobs]) if 1 < jobs <= len(available) else set())

    def one(cell: Cell) -> str | None:
        cores = shares.get()
        try:
            return run_cell(command, cell, workdir / cell.name, cores)
        finally:
            shares.put(cores)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(one, cell): cell for cell in cells}
        done = concurrent.futures.as_completed(futures)
        bar = tqdm(done, total=len(cells), unit="run", file=sys.stdout, disable=not sys.stdout.isatty())
        reasons = {futures[future].name: future.result() for future in bar}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def table(cells: Sequence[Cell], workdir: Path) -> str:
    """A Markdown table: mean and standard deviation over seeds."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    starts: dict[int, dict[str, float]] = {}  # by seed: untrained, all methods are the same
    for cell in cells:
        path = workdir / cell.name / "summary.json"
        if path.exists():
            summary = json.loads(path.read_text())
            rows[cell.row].append(summary)
            starts[summary["seed"]] = summary["start"]
    if not rows:
        return "no finished runs"
    finals = [run["final"] for runs in rows.values() for run in runs]
    metrics = [key for key in NAMES if all(key in final for final in finals)]
    lines = [
        "| | " + " | ".join(NAMES[key] for key in metrics) + " | classes a client receives | seeds |",
        "|---|" + "---|" * (len(metrics) + 2),
    ]
    untrained = [_spread([start[key] for start in starts.values()]) for key in metrics]
    lines.append(f"| untrained | {' | '.join(untrained)} | | {len(starts)} |")
    for label, runs in rows.items():
        scores = [_spread([run["final"][key] for run in runs]) for key in metrics]
        received = runs[0]["final"].get("comm/classes")
        shown = "–" if received is None else f"{received:,.0f}"
        lines.append(f"| {label} | {' | '.join(scores)} | {shown} | {len(runs)} |")
    return "\n".join(lines)


def _spread(values: Sequence[float]) -> str:
    mean, deviation = np.mean(values), np.std(values, ddof=1) if len(values) > 1 else 0.0
    return f"{mean:.3f}" + (f" ± {deviation:.3f}" if len(values) > 1 else "")
