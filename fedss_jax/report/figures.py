"""The figures of a run and of a sweep, from plain numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from fedss_jax.report import svg
from fedss_jax.report.svg import AMBER, BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, SKY, Drawing, Series

# Never told apart by colour alone: each also has its own line and marker.
LOOKS: dict[str, dict[str, Any]] = {
    "fedss": dict(color=BLUE, linestyle="-", marker="o"),
    "negonly": dict(color=ORANGE, linestyle=(0, (5, 2)), marker="s"),
    "posonly": dict(color=GREEN, linestyle=(0, (1, 1.5)), marker="^"),
    "fedaws": dict(color=PURPLE, linestyle=(0, (4, 1.5, 1, 1.5)), marker="D"),
    "fullsoftmax": dict(color=INK, linestyle="-", marker="*"),
    "centralized": dict(color=AMBER, linestyle=(0, (7, 2)), marker="P"),
}
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, AMBER, SKY, INK)
LINES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (4, 1.5, 1, 1.5)), (0, (7, 2)))
MARKERS = "os^DPvX*"


@dataclasses.dataclass(frozen=True)
class Curve:
    """Values over something, with their spread over seeds where there is one."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] = ()
    look: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def look(number: int) -> dict[str, Any]:
    """Of the line with this number, where lines are not methods."""
    return dict(
        color=COLOURS[number % len(COLOURS)],
        linestyle=LINES[number % len(LINES)],
        marker=MARKERS[number % len(MARKERS)],
    )


def lines(curves: Sequence[Curve], *, x: str, y: str, about: str, log_x: bool = False, legend: bool = True) -> Drawing:
    with matplotlib.rc_context(svg.STYLE):
        figure = svg.new_figure(7.2, 3.9)
        axes = figure.subplots()
        series = [_line(axes, curve, number, x, y) for number, curve in enumerate(curves)]
        axes.set(xlabel=x, ylabel=y)
        if log_x:
            _log_x(axes, curves)
        if legend and len(curves) > 1:
            axes.legend(fontsize=9, loc="best")
    return Drawing(figure, about, series)


def _line(axes: Axes, curve: Curve, number: int, x: str, y: str) -> Series:
    style = dict(markersize=4.5, linewidth=1.6) | dict(curve.look or look(number))
    axes.plot(curve.x, curve.y, label=curve.label, gid=f"series-{number}", **style)
    if len(curve.spread):
        mean, spread = np.asarray(curve.y), np.asarray(curve.spread)
        band = dict(color=style["color"], alpha=0.15, linewidth=0)
        axes.fill_between(curve.x, mean - spread, mean + spread, gid=f"series-{number}", **band)
    spreads = curve.spread or [0.0] * len(curve.x)
    told = [
        f"{curve.label}: {y} {v:.4g}" + (f" ± {s:.2g}" if s else "") + f" at {x} {u:,.6g}"
        for u, v, s in zip(curve.x, curve.y, spreads)
    ]
    return Series(curve.label, told)


def _log_x(axes: Axes, curves: Sequence[Curve]) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    ticks = sorted({u for curve in curves for u in curve.x})
    if len(ticks) <= 8:
        axes.set_xticks(ticks)
        axes.minorticks_off()


def learning(history: Sequence[Mapping[str, float]], scores: Mapping[str, str]) -> Drawing:
    """A run's loss, and its scores (key -> name), over rounds."""
    with matplotlib.rc_context(svg.STYLE):
        figure = svg.new_figure(10, 3.9)
        left, right = figure.subplots(1, 2)
        told: list[Series] = []
        trained = [line for line in history if "train/loss" in line]
        left.plot([m["round"] for m in trained], [m["train/loss"] for m in trained], color=BLUE, linewidth=1.2)
        left.set(xlabel="round", ylabel="training loss at the clients")
        for key, name in scores.items():
            seen = [line for line in history if key in line]
            if seen:
                curve = Curve(name, [m["round"] for m in seen], [m[key] for m in seen])
                told.append(_line(right, curve, len(told), "round", name))
        if ceilings := [line["eval/map10_ceiling"] for line in history if "eval/map10_ceiling" in line]:
            right.axhline(ceilings[-1], color=FAINT, linewidth=1, linestyle="--", label="ceiling of MAP@10")
        right.set(xlabel="round", ylabel="score", ylim=(0, 1))
        right.legend(fontsize=9, loc="best", ncols=2)
    return Drawing(figure, "Training loss and scores over rounds", told)


def traffic(bars: Mapping[str, tuple[float, float]]) -> Drawing:
    """What travels one way in a round, in MB: name -> encoder, rows of W."""
    with matplotlib.rc_context(svg.STYLE):
        figure = svg.new_figure(7.2, 0.8 + 0.42 * len(bars))
        axes = figure.subplots()
        names = list(bars)[::-1]
        encoder, rows = (np.array([bars[name][part] for name in names]) for part in (0, 1))
        place = np.arange(len(names))
        axes.barh(place, encoder, height=0.6, color=SKY, label="encoder")
        axes.barh(
            place, rows, left=encoder, height=0.6, color=ORANGE, hatch="///", edgecolor=INK, linewidth=0, label="W"
        )
        for i, total in enumerate(encoder + rows):
            axes.text(total, i, f" {total:,.2f} MB", va="center", fontsize=9)
        axes.set_yticks(place, names)
        axes.set(xlabel="MB to a client in a round", xlim=(0, 1.18 * float(np.max(encoder + rows))))
        axes.grid(visible=False, axis="y")
        axes.legend(fontsize=9, loc="lower right", ncols=2)
    return Drawing(figure, "Megabytes that a client receives in a round")


def confusion(counts: Sequence[Sequence[int]], names: Sequence[str], title: str = "") -> Drawing:
    """Counts [P, P + 1]; the last column, for classes that are not the client's, is left out if it is empty."""
    share = np.asarray(counts, float)
    share /= np.maximum(share.sum(axis=1, keepdims=True), 1)
    columns = [*names, "other"]
    if not share[:, -1].any():
        share, columns = share[:, :-1], columns[:-1]
    with matplotlib.rc_context(svg.STYLE):
        figure = svg.new_figure(4.6, 4.1)
        axes = figure.subplots()
        shown = axes.imshow(share, cmap="cividis", vmin=0, vmax=1, interpolation="nearest")
        few = len(names) <= 24
        short = [_short(name) for name in columns]
        axes.set_xticks(range(len(columns)) if few else [], short if few else [], rotation=90, fontsize=7)
        axes.set_yticks(range(len(names)) if few else [], short[: len(names)] if few else [], fontsize=7)
        axes.set(xlabel="taken for", ylabel="class", title=title)
        axes.grid(visible=False)
        figure.colorbar(shown, ax=axes, label="share of the class", shrink=0.8)
    right = float(np.mean(np.diag(share)))
    return Drawing(figure, f"Confusion among the {len(names)} classes of one client; {right:.0%} are right")


def _short(name: str) -> str:
    return (name if len(name) <= 8 else name[:7] + "…").replace("$", r"\$")  # dollars would begin mathematics


def difficulty(scores: Sequence[float], name: str) -> Drawing:
    """How many classes have which score."""
    with matplotlib.rc_context(svg.STYLE):
        figure = svg.new_figure(7.2, 2.6)
        axes = figure.subplots()
        axes.hist(scores, bins=np.linspace(0, 1, 21).tolist(), color=SKY, edgecolor=INK, linewidth=0.4)
        axes.axvline(float(np.mean(scores)), color=ORANGE, linestyle="--", linewidth=1.5, label="mean of classes")
        axes.set(xlabel=f"{name} of a class", ylabel="classes", xlim=(0, 1))
        axes.legend(fontsize=9)
    return Drawing(figure, f"Histogram of {name} over classes")


def gradient_noise(table: Sequence[Mapping[str, float]]) -> Drawing:
    """Over |N_k|: lines of gradient_noise.json."""
    with matplotlib.rc_context(svg.STYLE):
        figure = svg.new_figure(10, 3.6)
        series: list[Series] = []
        x = [line["num_negatives"] for line in table]
        kinds = {"l1": "mean |difference| of a parameter", "relative": "|difference| / |full gradient|"}
        for axes, (kind, label) in zip(figure.subplots(1, 2), kinds.items()):
            for name, part, style in (("φ", "encoder", LOOKS["fedss"]), ("W", "class_matrix", LOOKS["negonly"])):
                y = [line[f"{part}_{kind}"] for line in table]
                curve = Curve(name, x, y, look=style)
                series.append(_line(axes, curve, len(series), "|N_k|", label))
            axes.set(xlabel="negatives |N_k|", ylabel=label, xscale="log", yscale="log")
            axes.set_xticks(x, [f"{m:,}" for m in x])
            axes.minorticks_off()
            axes.legend(fontsize=9)
    return Drawing(figure, "Gradient noise of FedSS falls with the number of negatives", series)


def layer_share(shares: Mapping[int, Mapping[int, float]]) -> Drawing:
    """The class matrix's share of all parameters: d -> n -> share."""
    curves = [
        Curve(f"d = {dim:,}", list(of_n), [100 * share for share in of_n.values()], look=look(i))
        for i, (dim, of_n) in enumerate(shares.items())
    ]
    return lines(curves, x="classes n", y="% of parameters in W", about="Share of the class matrix", log_x=True)


def save(drawing: Drawing, path: Path) -> None:
    svg.save(drawing, path)
