"""Many runs of one config: every cell in a process and a folder of its own, and tables and a page over all of them.

A config file that has `sweep(add)` calls `add(method="fedss", num_negatives=5, seed=0)` for each cell; the names are
config keys. Cells that differ only in their seed make one row of the table. Started again, a sweep runs only what is
not done, and goes on where a cell was: it is done once its folder has a summary.json.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NamedTuple

from tqdm import tqdm

from fedss_jax import command_line, lock
from fedss_jax.config import NO_RESULT, resolve
from fedss_jax.metrics import refuse_another_run, say, writable, write_json
from fedss_jax.report import paper, sweep_page, tables
from fedss_jax.types import UserError

LOOK_EVERY = 1.0  # seconds, at how far the runs are


class Cell(NamedTuple):
    settings: Mapping[str, Any]  # config key -> value, as add() got them
    config: Mapping[str, Any]  # the whole config that they make

    @property
    def name(self) -> str:
        """A folder's name, such as method=fedss,num_negatives=5,seed=0."""
        return ",".join(f"{key}={value}" for key, value in self.settings.items()).replace("/", "_")

    @property
    def row(self) -> str:
        """Its row in the table, all but the seed: FedSS, m = 5."""
        shown = []
        for key, value in self.settings.items():
            if key == "method":
                shown.append(paper.METHODS.get(value, value))
            elif key == "num_negatives":
                shown.append(f"m = {value}")
            elif key == "extra_negatives" and value:
                shown.append("|P_k| − 1 more")
            elif key != "seed":
                shown.append(f"{key}={value}")
        method = self.config.get("method", "")
        return ", ".join(shown) or paper.METHODS.get(method, method)


def list_cells(config_file: ModuleType, config: Any) -> list[Cell]:
    """What the file's sweep(add) adds, each a checked copy of the config with its settings."""
    if not hasattr(config_file, "sweep"):
        raise UserError(
            f"{config_file.__file__} has no sweep(add); run it with --mode=train, or take one of configs/sweeps/"
        )
    cells: list[Cell] = []

    def add(**settings: Any) -> None:
        changed = config.copy_and_resolve_references()
        try:
            changed.update_from_flattened_dict(settings)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"sweep(add) of {config_file.__file__} adds {settings}: {error}; correct it") from None
        cells.append(Cell(settings, resolve(changed).to_dict()))

    config_file.sweep(add)
    name, times = Counter(cell.name for cell in cells).most_common(1)[0] if cells else ("", 0)
    if times != 1:
        problem = f"adds {name} {times} times; add it once" if cells else "adds no cell; call add(...) for each"
        raise UserError(f"sweep(add) of {config_file.__file__} {problem}")
    return cells


def sweep(command: Sequence[str], cells: Sequence[Cell], workdir: Path, jobs: int) -> None:
    """Runs every cell that is not done yet, prints the table and leaves table.md, .csv and .tex."""
    for cell in cells:
        refuse_another_run(workdir / cell.name, cell.config, NO_RESULT)
    with writable(workdir):
        workdir.mkdir(parents=True, exist_ok=True)
    describe(workdir, cells, failed={})  # at once, so that `python -m fedss_jax.report` shows what is done so far
    failed = run(command, cells, workdir, jobs)
    describe(workdir, cells, failed)
    rows = tables.read(workdir)
    with writable(workdir):
        tables.write(workdir, rows)
        page = sweep_page.write(workdir, rows)
    say(f"{tables.markdown(rows)}\n{len(cells) - len(failed)} of {len(cells)} runs are done;")
    say(f"{page} shows them; {workdir} also has {', '.join(tables.FORMATS)}")
    if failed:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
        raise UserError(f"{len(failed)} of {len(cells)} runs failed: {reasons}")


def describe(workdir: Path, cells: Sequence[Cell], failed: Mapping[str, str]) -> None:
    told = [{"name": cell.name, "row": cell.row, "settings": dict(cell.settings)} for cell in cells]
    write_json(workdir, "sweep.json", {"command": command_line.typed(), "cells": told, "failed": failed})


def run(command: Sequence[str], cells: Sequence[Cell], workdir: Path, jobs: int) -> dict[str, str]:
    """Runs all cells, so many at a time. Returns the failed ones: name -> reason."""
    available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    shares: queue.Queue[set[int]] = queue.Queue()
    for job in range(jobs):
        shares.put(set(available[job::jobs]) if 1 < jobs <= len(available) else set())

    stop = threading.Event()

    def one(cell: Cell) -> str | None:
        cores = shares.get()
        try:
            return run_cell(command, cell, workdir / cell.name, cores, stop)
        finally:
            shares.put(cores)

    failed: dict[str, str] = {}
    progress = Overall(cells, workdir)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(one, cell): cell for cell in cells}
        waiting = set(futures)
        try:
            while waiting:
                done, waiting = concurrent.futures.wait(waiting, LOOK_EVERY, concurrent.futures.FIRST_COMPLETED)
                for future in done:
                    if reason := future.result():
                        failed[futures[future].name] = reason
                progress.update([futures[future] for future in done])
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)  # who stops a sweep does not want the next run to begin
            progress.close()
    return {cell.name: failed[cell.name] for cell in cells if cell.name in failed}


def wait_for_lock(folder: Path, stop: threading.Event) -> IO[str]:
    """The folder's lock, once nobody else has it."""
    told = False
    while True:
        try:
            return lock.take(folder)
        except UserError as error:
            if not told:
                say(f"waiting: {error}")
                told = True
            if stop.wait(LOOK_EVERY):
                raise


def run_cell(command: Sequence[str], cell: Cell, folder: Path, cores: set[int], stop: threading.Event) -> str | None:
    """Runs a cell unless it is done. Returns what went wrong, if anything did; its output is in log.txt."""
    with writable(folder):
        folder.mkdir(parents=True, exist_ok=True)
    # A sweep that is killed leaves its runs behind. As long as one works, the next sweep waits for it here; and a run
    # that it starts gets the lock from it.
    with wait_for_lock(folder, stop) as held:
        if is_done(folder):
            return None
        settings = [f"--config.{key}={value}" for key, value in cell.settings.items()]
        with (folder / "log.txt").open("a+") as log:
            before = log.seek(0, os.SEEK_END)
            process = subprocess.Popen(
                [*command, *settings, f"--workdir={folder}"],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                pass_fds=[held.fileno()],
                env=os.environ | lock.for_child(held),
            )
            if cores:
                # A run that has a core to itself gets more done than two runs that share two.
                with contextlib.suppress(ProcessLookupError):  # it may have failed at once
                    os.sched_setaffinity(process.pid, cores)
            code = process.wait()
            log.seek(before)
            return why_it_failed(code, log.read()) if code else None


def why_it_failed(code: int, printed: str) -> str:
    """In one line. printed: by this start of the run."""
    if code < 0:
        memory = ", as is done where memory is short" if code == -signal.SIGKILL else ""
        return f"killed by {signal.Signals(-code).name}{memory}"
    last = (printed.strip().splitlines() or [""])[-1]
    return last if last.startswith("error:") else f"exit code {code}; the last it said: {last or 'nothing'}"


def is_done(folder: Path) -> bool:
    return (folder / "summary.json").exists()


class Overall:
    """How far all cells are, in rounds, and how long it will take: a bar on a terminal, a line a run elsewhere."""

    def __init__(self, cells: Sequence[Cell], workdir: Path):
        self._rounds = {cell.name: cell.config.get("rounds", 1) for cell in cells}
        self._done = {cell.name for cell in cells if is_done(workdir / cell.name)}
        self._workdir = workdir
        self._began = time.monotonic()
        self._at_start = self._so_far()  # with what runs had done before they were stopped
        if self._done:
            say(f"{len(self._done)} of {len(cells)} runs are done already")
        self._bar = None
        if sys.stdout.isatty():
            self._bar = tqdm(total=self._total, initial=self._at_start, unit="round", file=sys.stdout, smoothing=0.0)

    def update(self, ended: Sequence[Cell]) -> None:
        """ended: cells that are over now, well or not."""
        told = [cell.name for cell in ended if cell.name not in self._done]
        self._done.update(told)
        for name in told:
            if not is_done(self._workdir / name):  # it failed, and what it has not done will not be done
                self._rounds[name] = self._rounds_of(name)
        if self._bar is not None:
            self._bar.set_postfix_str(f"{len(self._done)}/{len(self._rounds)} runs", refresh=False)
            self._bar.total = self._total
            self._bar.update(self._so_far() - self._bar.n)
        elif told:
            for name in told:
                say(f"{len(self._done)} of {len(self._rounds)} runs are over ({self._times()}): {name}")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    @property
    def _total(self) -> int:
        return sum(self._rounds.values())

    def _so_far(self) -> int:
        return sum(
            rounds if name in self._done else min(rounds, self._rounds_of(name))
            for name, rounds in self._rounds.items()
        )

    def _rounds_of(self, name: str) -> int:
        """Rounds that a run has written; it writes a line before the first."""
        try:
            return max(0, (self._workdir / name / "metrics.jsonl").read_bytes().count(b"\n") - 1)
        except OSError:
            return 0

    def _times(self) -> str:
        passed, so_far = time.monotonic() - self._began, self._so_far()
        left = passed * (self._total - so_far) / max(1, so_far - self._at_start)
        return f"{tqdm.format_interval(passed)}, about {tqdm.format_interval(left)} left"
