"""What all peers share: reading a workload (benchmarks/workloads.py), the clock, and the line they print at the end.

Needs NumPy only, as every peer runs in an environment of its own.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import json
import os
import time
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import numpy as np

STARTED = time.perf_counter()  # before the framework is imported, as `import common` comes first


@dataclasses.dataclass(frozen=True)
class Workload:
    """A workload's folder. R rounds, K clients a round, E examples a client, S classes that a client sees."""

    meta: SimpleNamespace
    init: dict[str, np.ndarray]
    features: np.ndarray  # [N, ...]
    labels: np.ndarray  # [N]
    examples: np.ndarray  # [clients, E]
    cohorts: np.ndarray  # [R, K]
    orders: np.ndarray  # [R, K, E]
    targets: np.ndarray | None  # [clients, E]; None where all clients see all classes, and so for the next two
    classes: np.ndarray | None  # [R, K, S]
    log_inclusion: np.ndarray | None  # [R, K, S]

    @property
    def sampled(self) -> bool:
        return self.classes is not None

    def rows(self, round: int, slot: int) -> np.ndarray:
        """[E]: rows of `features` in the order in which the slot-th client of a round sees them."""
        return self.examples[self.cohorts[round, slot]][self.orders[round, slot]]

    def answers(self, round: int, slot: int) -> np.ndarray:
        """[E]: the labels that go with `rows`, or their places among the client's classes."""
        if self.targets is None:
            return self.labels[self.rows(round, slot)]
        return self.targets[self.cohorts[round, slot]][self.orders[round, slot]]


def read(folder: Path) -> Workload:
    meta = SimpleNamespace(**json.loads((folder / "meta.json").read_text()))
    init = {path.stem: np.load(path) for path in sorted((folder / "init").glob("*.npy"))}
    names = [field.name for field in dataclasses.fields(Workload)][2:]
    paths = {name: folder / f"{name}.npy" for name in names}
    # Mapped, so that several processes share one copy; copy-on-write, as PyTorch asks for writable arrays.
    arrays = {name: np.load(path, mmap_mode="c") if path.exists() else None for name, path in paths.items()}
    return Workload(meta, init, **arrays)  # type: ignore[arg-type]


def keep_memory() -> None:
    """Tell malloc never to give memory back. Else a large array costs page faults each time that it is made.

    A third of the time of a MobileNet's step in PyTorch is saved by it. Linux's glibc only; elsewhere nothing happens.
    """
    mmap_max, trim_threshold = -4, -1  # M_MMAP_MAX and M_TRIM_THRESHOLD in malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(mmap_max, 0)
        mallopt(trim_threshold, 2**31 - 1)


def flags(description: str | None, variants: Sequence[str]) -> argparse.Namespace:
    """The command line of a peer; the first variant is its default. Keeps the process to so many cores."""
    keep_memory()
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="written by benchmarks/workloads.py")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--variant", choices=variants, default=variants[0])
    chosen = parser.parse_args()
    most = len(np.load(chosen.folder / "cohorts.npy", mmap_mode="r"))
    if chosen.rounds > most:
        parser.error(f"{chosen.folder} has {most} rounds, not {chosen.rounds}")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: chosen.threads])
    os.environ["OMP_NUM_THREADS"] = str(chosen.threads)
    return chosen


class Stopwatch:
    """Times of rounds; what comes before it is made is start-up."""

    def __init__(self) -> None:
        self.last = time.perf_counter()
        self.startup = self.last - STARTED
        self.laps: list[float] = []

    def lap(self) -> None:
        now = time.perf_counter()
        self.laps.append(now - self.last)
        self.last = now


def report(peer: str, package: str, flags: argparse.Namespace, watch: Stopwatch, losses: Iterable[float]) -> None:
    """The last line of a peer's output. Losses are means over all examples of a round's local steps."""
    result = {
        "peer": peer,
        "variant": flags.variant,
        "version": metadata.version(package),
        "startup_seconds": watch.startup,
        "round_seconds": watch.laps,
        "losses": [float(loss) for loss in losses],
        "threads": flags.threads,
    }
    print(json.dumps(result), flush=True)
