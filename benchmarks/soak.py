"""Whether a long run with checkpoints ends as it began: flat memory, no compilation, no file or thread left open.

    python -m benchmarks.soak [--rounds N]

A whole run of train.py on a small federation (23 classes, 12 clients, a linear encoder), saved every 100 rounds and
evaluated every 1,000. It is looked at from the side; the second tenth of its rounds is compared with the last.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import jax.monitoring
import numpy as np

from benchmarks import results
from benchmarks.steady import resident_bytes
from configs import arrays
from fedss_jax.train import train

LOOK_EVERY = 0.25  # seconds
CLASSES, EXAMPLES, FEATURES = 23, 12, 8
MOST_GROWTH = 0.02  # of memory


class Look(NamedTuple):
    """A run, seen once; or medians of some looks."""

    round: float
    memory: float
    files: float
    threads: float
    compilations: float


class Watch(threading.Thread):
    """Looks at this process until it is told that it is over."""

    def __init__(self, metrics: Path):
        super().__init__(daemon=True)
        self.looks: list[Look] = []
        self._metrics, self._over, self._compilations = metrics, threading.Event(), 0
        self._rounds, self._read = -1, 0
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    def _hear(self, event: str, *_: object, **__: object) -> None:
        self._compilations += "backend_compile" in event

    def _round(self) -> int:
        """Lines that were written, of which the first is of round 0. Only new ones are read."""
        if self._metrics.exists():
            with self._metrics.open("rb") as file:
                file.seek(self._read)
                new = file.read()
            self._read, self._rounds = self._read + len(new), self._rounds + new.count(b"\n")
        return self._rounds

    def run(self) -> None:
        while not self._over.wait(LOOK_EVERY):
            files = len(os.listdir("/proc/self/fd"))
            threads = len(os.listdir("/proc/self/task"))
            self.looks.append(Look(self._round(), resident_bytes(), files, threads, self._compilations))

    def stop(self) -> None:
        self._over.set()
        self.join()


def run(rounds: int, folder: Path) -> tuple[list[Look], dict[str, float]]:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), EXAMPLES)
    features = rng.normal(size=(CLASSES, FEATURES))[labels] + rng.normal(size=(len(labels), FEATURES))
    clients = np.arange(len(labels)) // CLASSES
    np.savez(folder / "train.npz", features=features.astype(np.float32), labels=labels, clients=clients)
    config = arrays.get_config()
    config.data.train = str(folder / "train.npz")
    config.rounds, config.eval.every, config.checkpoint.every = rounds, max(1, rounds // 20), max(1, rounds // 200)
    watch = Watch(folder / "run" / "metrics.jsonl")
    watch.start()
    began = time.perf_counter()
    summary = train(config, str(folder / "run"))
    watch.stop()
    return watch.looks, {"seconds": time.perf_counter() - began, "rounds_per_second": summary["rounds_per_second"]}


def tenths(looks: list[Look], rounds: int) -> list[Look]:
    """Medians over each tenth of the rounds."""
    parts = [[look for look in looks if 10 * look.round // rounds == tenth] for tenth in range(10)]
    if not all(parts):
        sys.exit("too short to compare its beginning with its end; raise --rounds")
    return [Look(*(float(np.median(values)) for values in zip(*part))) for part in parts]


def main() -> None:
    parser = results.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=20_000)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        looks, about = run(flags.rounds, Path(temporary))
    found = tenths(looks, flags.rounds)
    early, late = found[1], found[-1]
    growth = late.memory / early.memory - 1
    rows = [("memory, MB", f"{early.memory / 1e6:.1f}", f"{late.memory / 1e6:.1f}", f"{growth:+.1%}")]
    for name, title in (("files", "open files"), ("threads", "threads"), ("compilations", "compilations")):
        first, last = getattr(early, name), getattr(late, name)
        rows.append((title, f"{first:.0f}", f"{last:.0f}", f"{last - first:+.0f}"))
    saves = len(range(0, flags.rounds, max(1, flags.rounds // 200)))
    print(f"\n{flags.rounds:,} rounds and {saves} checkpoints in {about['seconds']:.0f} s; medians")
    print(results.table(("", "second tenth", "last tenth", "change"), rows))
    told = {"rounds": flags.rounds, **about, "growth": growth, "tenths": [look._asdict() for look in found]}
    results.save(flags.out, "soak", told)
    grown = [name for name in ("files", "threads", "compilations") if getattr(late, name) > getattr(early, name)]
    if grown or growth > MOST_GROWTH:
        sys.exit(f"failed: {', '.join([*grown, *(['memory'] if growth > MOST_GROWTH else [])])} grew")


if __name__ == "__main__":
    main()
