"""The same round on more and more chips, by the estimates of the TPU compiler. It needs no TPU.

    pip install '.[tpu]'
    python -m benchmarks.scaling [--runs sop-32 ...] [--slices v5e:1x1 ...] [--folder DIR] [--kept] [--figure FILE]

Every line is a plan: python launch.py --config=... --mode=plan --topology=... A large encoder takes minutes to compile,
so plans are kept in the folder, and those that are there are not made again; with --kept no others are made.

Efficiency is the speed-up over the first line against the chips that were added. `ms / lane` is the time of a step for
each of a chip's lanes: with fewer of them, less of the chip is in use.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import results
from fedss_jax import chips
from fedss_jax.report.plan import seconds_per_round

SLICES = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
PAYS = 0.5  # efficiency


class Run(NamedTuple):
    title: str
    config: str
    clients: int  # a round


RUNS = {
    "sop-32": Run("Stanford Online Products, 32 clients a round", "configs/sop.py", 32),
    "sop-256": Run("Stanford Online Products, 256 clients a round", "configs/sop.py", 256),
    "imagenet21k-64": Run("ImageNet-21k, 64 clients a round", "configs/imagenet21k.py", 64),
}


def workdir_of(name: str, topology: str, folder: Path) -> Path:
    return folder / f"{name}-{topology.replace(':', '-')}"


def is_kept(name: str, topology: str, folder: Path) -> bool:
    return (workdir_of(name, topology, folder) / "plan.json").exists()


def planned(name: str, topology: str, folder: Path) -> dict[str, Any]:
    """From the folder, or made now."""
    run, workdir = RUNS[name], workdir_of(name, topology, folder)
    if not is_kept(name, topology, folder):
        print(f"planning {run.title} for {topology} (minutes)", file=sys.stderr, flush=True)
        settings = ["--config.model.dtype=bfloat16", f"--config.clients_per_round={run.clients}"]
        flags = ["--mode=plan", f"--topology={topology}", f"--workdir={workdir}"]
        command = [sys.executable, "launch.py", f"--config={run.config}", *settings, *flags]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return json.loads((workdir / "plan.json").read_text())


HEADER = (
    "chips",
    "with work",
    "lanes",
    "ms / lane",
    "s / round",
    "speed-up",
    "efficiency",
    "sending",
    "real slots",
    "images / s",
)


class Point(NamedTuple):
    plan: dict[str, Any]
    seconds: float | None  # a round; None if it does not fit
    speed_up: float

    @property
    def chips(self) -> int:
        return self.plan["devices"]

    @property
    def with_work(self) -> int:
        return min(self.chips, self.plan["clients_per_round"])

    def cells(self, efficiency: float) -> list[str]:
        if self.seconds is None:
            return [str(self.chips), "does not fit", *[""] * (len(HEADER) - 2)]
        work, lanes = self.plan["work"], self.plan["lanes"]
        return [
            str(self.chips),
            str(self.with_work),
            str(lanes),
            f"{1e3 * self.seconds / work['often']['lanes'] / lanes:.2f}",
            f"{self.seconds:.4f}",
            f"{self.speed_up:.2f}",
            f"{efficiency:.0%}",
            f"{self.plan['traffic']['sending'] / self.seconds:.1%}",
            f"{work['examples'] / work['slots']:.1%}",
            f"{work['examples'] / self.seconds:,.0f}",
        ]


def show(title: str, plans: list[dict[str, Any]]) -> None:
    """plans: of fewest chips first."""
    seconds = [seconds_per_round(plan) for plan in plans]
    first = next((i for i, taken in enumerate(seconds) if taken), 0)
    points = [Point(plan, s, (seconds[first] or 0.0) / s if s else 0.0) for plan, s in zip(plans, seconds)]
    efficiency = {point.chips: point.speed_up * points[first].chips / point.chips for point in points}
    print(f"{title}\n{results.table(HEADER, [point.cells(efficiency[point.chips]) for point in points])}")
    most = max((count for count, share in efficiency.items() if share >= PAYS), default=points[first].chips)
    idle = next((point for point in points if point.with_work < point.chips), None)
    why = f"; of {idle.chips} only {idle.with_work} have a client to train" if idle else ""
    print(f"at least half of what was added is used up to {most} chips{why}\n", flush=True)


def draw(plans: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """plans: by the run's name."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for (name, of_run), marker in zip(plans.items(), "os^"):
        points = [(plan["devices"], plan["work"]["examples"] / s) for plan in of_run if (s := seconds_per_round(plan))]
        chips_, rates = zip(*points, strict=True)
        (line,) = axes.loglog(chips_, rates, marker=marker, label=RUNS[name].title)
        ideal = [rates[0] * count / chips_[0] for count in chips_]
        axes.loglog(chips_, ideal, ":", color=line.get_color())
    sizes = sorted({plan["devices"] for of_run in plans.values() for plan in of_run})
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_yticks([], minor=True)
    axes.set(xlabel="chips of a v5e slice", ylabel="images a second, estimated", title="Strong scaling (dotted: ideal)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", nargs="+", default=[*RUNS], choices=[*RUNS])
    parser.add_argument("--slices", nargs="+", default=[f"v5e:{size}" for size in SLICES])
    parser.add_argument("--folder", type=Path, default=Path("runs/scaling"))
    parser.add_argument("--kept", action="store_true", help="only plans that are in the folder")
    parser.add_argument("--figure", type=Path, help="a picture of it")
    flags = parser.parse_args()
    if not chips.has_compiler():
        sys.exit(chips.INSTALL)
    plans = {}
    for name in flags.runs:
        slices = [each for each in flags.slices if not flags.kept or is_kept(name, each, flags.folder)]
        if slices:
            plans[name] = [planned(name, topology, flags.folder) for topology in slices]
            show(RUNS[name].title, plans[name])
    if flags.figure:
        draw(plans, flags.figure)


if __name__ == "__main__":
    main()
