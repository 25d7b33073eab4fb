"""The figures of a run and of a sweep, from plain numbers."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

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
WIDTH, HEIGHT = 5.6, 3.5  # inches; all figures have one scale, and their text can be read on a phone
LINE = 0.2  # inches, of text
LABEL_SHARE = 0.12  # of an axis: room for the label of a tick
LABEL = 32  # letters in a line of a label: two columns of them, or one and bars, have room


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


def lines(curves: Sequence[Curve], *, x: str, y: str, about: str, log_x: bool = False) -> Drawing:
    with matplotlib.rc_context(svg.STYLE):
        figure = svg.new_figure(WIDTH, HEIGHT + LINE * _legend_lines([curve.label for curve in curves]))
        axes = figure.subplots()
        series = [_line(axes, curve, number, x, y) for number, curve in enumerate(curves)]
        axes.set(xlabel=x, ylabel=y)
        if log_x:
            _log_x(axes, curves)
        if len(curves) > 1:
            _legend_above(axes, columns=2)
    return Drawing(figure, about, series)


def _line(axes: Axes, curve: Curve, number: int, x: str, y: str) -> Series:
    style = dict(markersize=4.5, linewidth=1.6) | dict(curve.look or look(number))
    axes.plot(curve.x, curve.y, label=_wrapped(curve.label), gid=f"series-{number}", **style)
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
        axes.set_xticks(_apart(ticks))
        axes.minorticks_off()


def _apart(ticks: Sequence[float]) -> list[float]:
    """Those of some on a logarithmic axis whose labels do not touch."""
    least = LABEL_SHARE * np.log(ticks[-1] / ticks[0])
    chosen: list[float] = []
    for tick in ticks:
        if not chosen or np.log(tick / chosen[-1]) >= least:
            chosen.append(tick)
    return chosen


def loss(history: Sequence[Mapping[str, float]]) -> Drawing:
    """A run's training loss over rounds."""
    with matplotlib.rc_context(svg.STYLE):
        figure = svg.new_figure(WIDTH, HEIGHT)
        axes = figure.subplots()
        trained = [line for line in history if "train/loss" in line]
        axes.plot([m["round"] for m in trained], [m["train/loss"] for m in trained], color=BLUE, linewidth=1.2)
        axes.set(xlabel="round", ylabel="training loss")
    return Drawing(figure, "Training loss over rounds")


def scores(history: Sequence[Mapping[str, float]], names: Mapping[str, str]) -> Drawing:
    """A run's scores (key -> name) over rounds."""
    with matplotlib.rc_context(svg.STYLE):
        figure = svg.new_figure(WIDTH, HEIGHT)
        axes = figure.subplots()
        told: list[Series] = []
        for key, name in names.items():
            seen = [line for line in history if key in line]
            if seen:
                curve = Curve(name, [m["round"] for m in seen], [m[key] for m in seen])
                told.append(_line(axes, curve, len(told), "round", name))
        if ceilings := [line["eval/map10_ceiling"] for line in history if "eval/map10_ceiling" in line]:
            axes.axhline(ceilings[-1], color=FAINT, linewidth=1, linestyle="--", label="ceiling of MAP@10")
        axes.set(xlabel="round", ylabel="score", ylim=(0, 1))
        _legend_above(axes, columns=2)
    return Drawing(figure, "Scores over rounds", told)


def _wrapped(label: str) -> str:
    return _literal("\n".join(textwrap.wrap(label, LABEL)) or label)


def _literal(text: str) -> str:
    """As it is: dollars would begin mathematics."""
    return text.replace("$", r"\$")


def _legend_lines(labels: Sequence[str]) -> int:
    """Of two columns, filled one after the other."""
    lines = [_wrapped(label).count("\n") + 1 for label in labels]
    middle = -(-len(lines) // 2)
    return max(sum(lines[:middle]), sum(lines[middle:]))


def _legend_above(axes: Axes, columns: int) -> None:
    """Where it hides nothing."""
    axes.legend(fontsize=10, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, borderaxespad=0.2)


def traffic(bars: Mapping[str, tuple[float, float]]) -> Drawing:
    """What travels one way in a round, in MB: name -> encoder, rows of W."""
    with matplotlib.rc_context(svg.STYLE):
        names = list(bars)[::-1]
        labels = [_wrapped(name) for name in names]
        figure = svg.new_figure(WIDTH, 1.1 + LINE * sum(2 + label.count("\n") for label in labels))
        axes = figure.subplots()
        encoder, rows = (np.array([bars[name][part] for name in names]) for part in (0, 1))
        place = np.arange(len(names))
        axes.barh(place, encoder, height=0.6, color=SKY, label="encoder")
        axes.barh(
            place,
            rows,
            left=encoder,
            height=0.6,
            color=ORANGE,
            hatch="///",
            edgecolor=INK,
            linewidth=0,
            label="rows of W",
        )
        for i, total in enumerate(encoder + rows):
            label = f"{total:,.3g} MB"
            axes.annotate(label, (total, i), xytext=(4, 0), textcoords="offset points", va="center", fontsize=10)
        axes.set_yticks(place, labels)
        axes.set(xlabel="MB to a client in a round", xlim=(0, 1.18 * float(np.max(encoder + rows))))
        axes.grid(visible=False, axis="y")
        _legend_above(axes, columns=2)
    return Drawing(figure, "Megabytes that a client receives in a round")


def confusion(counts: Sequence[Sequence[int]], names: Sequence[str], title: str = "") -> Drawing:
    """Counts [P, P + 1]; the last column, for classes that are not the client's, is left out if it is empty."""
    share = np.asarray(counts, float)
    right = np.trace(share) / max(share.sum(), 1)
    share /= np.maximum(share.sum(axis=1, keepdims=True), 1)
    columns = [*names, "other"]
    if not share[:, -1].any():
        share, columns = share[:, :-1], columns[:-1]
    with matplotlib.rc_context(svg.STYLE):
        figure = svg.new_figure(4.4, 3.9)
        axes = figure.subplots()
        shown = axes.imshow(share, cmap="cividis", vmin=0, vmax=1, interpolation="nearest")
        few = len(names) <= 24
        short = [_short(name) for name in columns]
        axes.set_xticks(range(len(columns)) if few else [], short if few else [], rotation=90, fontsize=7)
        axes.set_yticks(range(len(names)) if few else [], short[: len(names)] if few else [], fontsize=7)
        axes.set(xlabel="taken for", ylabel="class", title=_literal(title))
        axes.grid(visible=False)
        figure.colorbar(shown, ax=axes, label="share of the class", shrink=0.8)
    return Drawing(figure, f"Confusion among the {len(names)} classes of one client; {right:.0%} are right")


def _short(name: str) -> str:
    return _literal(name if len(name) <= 8 else name[:7] + "…")


def difficulty(scores: Sequence[float], name: str) -> Drawing:
    """How many classes have which score."""
    with matplotlib.rc_context(svg.STYLE):
        figure = svg.new_figure(WIDTH, 2.6)
        axes = figure.subplots()
        axes.hist(scores, bins=np.linspace(0, 1, 21).tolist(), color=SKY, edgecolor=INK, linewidth=0.4)
        axes.axvline(float(np.mean(scores)), color=ORANGE, linestyle="--", linewidth=1.5, label="mean of classes")
        axes.set(xlabel=f"{name} of a class", ylabel="classes", xlim=(0, 1))
        axes.legend(fontsize=10)
    return Drawing(figure, f"Histogram of {name} over classes")


NOISES = {"relative": "|difference| / |full gradient|", "l1": "mean |difference| of a parameter"}


def gradient_noise(table: Sequence[Mapping[str, float]], kind: str = "relative") -> Drawing:
    """Over |N_k|: lines of gradient_noise.json, for phi and W apart."""
    with matplotlib.rc_context(svg.STYLE):
        figure = svg.new_figure(WIDTH, HEIGHT)
        axes = figure.subplots()
        x = [line["num_negatives"] for line in table]
        series: list[Series] = []
        for name, part, style in (("φ", "encoder", LOOKS["fedss"]), ("W", "class_matrix", LOOKS["negonly"])):
            curve = Curve(name, x, [line[f"{part}_{kind}"] for line in table], look=style)
            series.append(_line(axes, curve, len(series), "|N_k|", NOISES[kind]))
        axes.set(xlabel="negatives |N_k|", ylabel=NOISES[kind], xscale="log", yscale="log")
        axes.set_xticks(x, [f"{m:,}" for m in x])
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5, 7)))  # its range may be less than from 1 to 10
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        _legend_above(axes, columns=2)
    return Drawing(figure, "Gradient noise of FedSS over the number of negatives", series)


def layer_share(shares: Mapping[int, Mapping[int, float]]) -> Drawing:
    """The class matrix's share of all parameters: d -> n -> share."""
    curves = [
        Curve(f"d = {dim:,}", list(of_n), [100 * share for share in of_n.values()], look=look(i))
        for i, (dim, of_n) in enumerate(shares.items())
    ]
    return lines(curves, x="classes n", y="% of parameters in W", about="Share of the class matrix", log_x=True)


def save(drawing: Drawing, path: Path) -> None:
    svg.save(drawing, path)
