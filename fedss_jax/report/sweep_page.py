"""The page of a sweep, which compares its runs: tables, curves, and the paper's figures where the sweep has them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from fedss_jax.report import curves, figures, paper, render, run_page, tables
from fedss_jax.report.configs import flat
from fedss_jax.report.figures import LOOKS, Curve
from fedss_jax.report.render import Tile
from fedss_jax.report.summary import NAMES
from fedss_jax.report.svg import Drawing
from fedss_jax.report.tables import Row

OVERLAID = 16  # lines in one figure, at most
FIGURES = "figures"  # the folder where each is a file of its own


class Section(NamedTuple):
    id: str
    short: str  # what a link to it says
    title: str
    drawings: Mapping[str, Drawing]  # by their captions


def write(workdir: Path, rows: Sequence[Row]) -> Path:
    """Makes report.html and returns where it is. Runs that lack a page get one."""
    told = json.loads((workdir / "sweep.json").read_text())
    done = [name for row in rows for name in row.done]
    for name in done:
        if not (workdir / name / render.PAGE).exists():
            run_page.write(workdir / name)
    summaries = {name: json.loads((workdir / name / "summary.json").read_text()) for name in done}
    metric = next((key for key in run_page.HEADLINES if any(key in row.scores for row in rows)), run_page.HEADLINES[0])
    titles, lines = tables.cells(rows, with_failures=False)  # they have a table of their own
    sections = draw(workdir, rows, metric, summaries)
    save_figures(workdir / FIGURES, sections)
    failed = [[name, reason] for row in rows for name, reason in row.failed.items()]
    parts = [("scores", "Scores"), *([("failed", "Failed")] if failed else [])]
    parts += [(section.id, section.short) for section in sections]
    data = sorted({f"{each['dataset']} ({each['task']})" for each in summaries.values()})
    return render.write(
        workdir,
        "sweep.html",
        kind="a sweep",
        title=" and ".join(data) or workdir.name,
        subtitle=f"{len(done)} of {len(told['cells'])} runs are done" + (f", {len(failed)} failed" if failed else ""),
        parts=[*parts, ("runs", "Runs"), ("made", "How")],
        tiles=tiles(rows, metric, summaries),
        titles=titles,
        lines=lines,
        failed=failed,
        figures=[(section, shown(section)) for section in sections],
        runs=[
            {
                "name": name,
                "href": f"{quote(name)}/{render.PAGE}",
                "score": f"{NAMES[metric]} {each['final'][metric]:.3f}" if metric in each["final"] else "",
            }
            for name, each in summaries.items()
        ],
        command=told["command"],
        config=shared_settings(workdir, done),
    )


def shown(section: Section) -> list[render.Shown]:
    return [render.shown(drawn, caption, toggles=bool(drawn.series)) for caption, drawn in section.drawings.items()]


def save_figures(folder: Path, sections: Sequence[Section]) -> None:
    """As files, for documents and papers: curves.svg, or confusion-1.svg, confusion-2.svg where there are two."""
    folder.mkdir(exist_ok=True)
    for section in sections:
        for number, drawing in enumerate(section.drawings.values(), 1):
            name = section.id if len(section.drawings) == 1 else f"{section.id}-{number}"
            figures.save(drawing, folder / f"{name}.svg")


def shared_settings(workdir: Path, done: Sequence[str]) -> list[list[str]]:
    configs = [flat(json.loads((workdir / name / "config.json").read_text())) for name in done]
    first = configs[0] if configs else {}
    return render.settings({k: v for k, v in first.items() if all(config.get(k) == v for config in configs)})


def tiles(rows: Sequence[Row], metric: str, summaries: Mapping[str, Mapping[str, Any]]) -> list[Tile]:
    """FedSS at its best, beside what it approximates and where all began."""
    made = []
    by_method = {method: [r for r in rows if r.method == method and metric in r.scores] for method in paper.METHODS}
    for method in ("fedss", "fullsoftmax"):
        if by_method[method]:
            best = max(by_method[method], key=lambda row: row.scores[metric].mean)
            n = summaries[best.done[0]]["num_classes"]
            share = f"{100 * best.received / n:.3g} % of the classes at a client" if best.received else ""
            made.append(Tile(f"{best.label}: {NAMES[metric]}", f"{best.scores[metric].mean:.3f}", share))
    start = [row for row in rows if not row.method and metric in row.scores]
    made += [Tile("before training", f"{row.scores[metric].mean:.3f}", NAMES[metric]) for row in start]
    return made or [Tile("runs", str(len(summaries)))]


def draw(workdir: Path, rows: Sequence[Row], metric: str, summaries: Mapping[str, Mapping[str, Any]]) -> list[Section]:
    """All that the rows have something for."""
    scored = [row for row in rows if row.method and metric in row.scores]
    if not scored:
        return []
    y = NAMES[metric]
    seen = {row.label: learning_curve(workdir, row, metric) for row in scored}
    plain = [row for row in scored if not set(row.settings) - {"method", "num_negatives", "extra_negatives"}]
    is_paper = len(plain) == len(scored)
    overlaid, which = overlaid_rows(scored, is_paper, metric)
    sections = []

    def add(id: str, short: str, title: str, drawn: Sequence[Curve], x: str, caption: str, log_x: bool = False) -> None:
        drawing = figures.lines(drawn, x=x, y=y, about=f"{title}: {y} over {x}", log_x=log_x)
        sections.append(Section(id, short, title, {caption: drawing}))

    styled = [styled_curve(seen[row.label], row, is_paper) for row in overlaid]
    caption = f"Mean over seeds; the band is one standard deviation.{which}"
    add("curves", "Curves", "Learning curves", styled, "round", caption)
    fedss = [row for row in plain if row.method == "fedss"]
    full = [row for row in plain if row.method == "fullsoftmax"]
    if len(fedss) > 1:
        drawn = [seen[row.label] for row in fedss] + [styled_curve(seen[row.label], row, True) for row in full]
        beside = ", beside FullSoftmax, which it approximates" if full else ""
        caption = f"FedSS with few and with many negatives{beside}."
        add("sizes", "By m", "FedSS by its number of negatives", drawn, "round", caption)
    if len({row.method for row in plain}) > 1:
        sent = [curve for row in groups(plain) for curve in [against_parameters(row, metric, summaries)] if curve]
        caption = "Classifier parameters that a client receives in a round (logarithmic), against the score."
        add("parameters", "Parameters", "Score against parameters sent", sent, "parameters of W sent", caption, True)
    if any(row.settings.get("extra_negatives") for row in plain):
        drawn = equal_negatives(plain, metric)
        caption = "With |P_k| − 1 more negatives, an example of NegOnly competes against as many classes as in FedSS."
        add("negatives", "Negatives", "With as many negatives", drawn, "negatives m", caption, True)
    if any("train/top1" in row.scores for row in scored):
        drawn = [
            Curve(r.label, [r.scores["train/top1"].mean], [r.scores[metric].mean], look=point(i, r, is_paper))
            for i, r in enumerate(overlaid)
            if "train/top1" in r.scores
        ]
        caption = f"Who knows the training classes by heart (right) need not have the best {y} (top).{which}"
        add("overfitting", "Over-fitting", "Training against test", drawn, "top-1 on training examples", caption)
    if bars := {row.label: megabytes(row, summaries) for row in overlaid if row.received}:
        bars |= whole_model([summaries[row.done[0]] for row in overlaid])
        caption = f"What a mean client receives in a round, and sends back.{which}"
        sections.append(Section("traffic", "Wire", "On the wire", {caption: figures.traffic(bars)}))
    if confusions := confusion_pair(workdir, plain):
        sections.append(Section("confusion", "Confusion", "One client's classes", confusions))
    return sections


def overlaid_rows(scored: Sequence[Row], is_paper: bool, metric: str) -> tuple[list[Row], str]:
    """Those that are drawn into one figure, and what to say of them if these are not all."""
    if is_paper:
        plain = [row for row in scored if not row.settings.get("extra_negatives")]
        chosen, which = [row for row in plain if is_middle(row, plain)], "of several numbers of negatives, the middle"
    else:
        chosen, which = sorted(scored, key=lambda r: -r.scores[metric].mean)[:OVERLAID], "those with the best scores"
    left_out = len(chosen) < len(scored)
    return chosen, f" {len(chosen)} of the {len(scored)} rows: {which}." if left_out else ""


def is_middle(row: Row, rows: Sequence[Row]) -> bool:
    """Of several numbers of negatives, the one in the middle, as in the paper's figure 1."""
    numbers = sorted(
        r.settings["num_negatives"] for r in rows if r.method == row.method and "num_negatives" in r.settings
    )
    return "num_negatives" not in row.settings or row.settings["num_negatives"] == numbers[len(numbers) // 2]


def learning_curve(workdir: Path, row: Row, metric: str) -> Curve:
    """Mean and deviation over seeds, at the rounds that all of them were scored at."""
    runs = [
        {line["round"]: line[metric] for line in curves.read(workdir / name) if metric in line} for name in row.done
    ]
    rounds = sorted(set.intersection(*(set(run) for run in runs)))
    values = np.array([[run[r] for r in rounds] for run in runs])
    spread = values.std(axis=0, ddof=1).tolist() if len(runs) > 1 else ()
    return Curve(row.label, rounds, values.mean(axis=0).tolist(), spread)


def styled_curve(curve: Curve, row: Row, by_method: bool) -> Curve:
    return Curve(curve.label, curve.x, curve.y, curve.spread, LOOKS.get(row.method, {}) if by_method else {})


def point(number: int, row: Row, by_method: bool) -> dict[str, Any]:
    chosen = dict(LOOKS[row.method] if by_method and row.method in LOOKS else figures.look(number))
    return chosen | {"linestyle": "none", "markersize": 8}


def groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows of a method, by their numbers of negatives, without the fairness arm."""
    plain = [row for row in rows if not row.settings.get("extra_negatives")]
    return [
        sorted((r for r in plain if r.method == method), key=lambda r: r.settings.get("num_negatives", 0))
        for method in paper.METHODS
        if any(r.method == method for r in plain)
    ]


def against_parameters(rows: Sequence[Row], metric: str, summaries: Mapping[str, Mapping[str, Any]]) -> Curve | None:
    """Who is not federated sends nothing, and has no place here."""
    sent = [row for row in rows if row.received]
    if not sent:
        return None
    dim = summaries[sent[0].done[0]]["dim"]
    x, y = [(row.received or 0) * dim for row in sent], [row.scores[metric].mean for row in sent]
    return Curve(paper.METHODS[sent[0].method], x, y, look=LOOKS[sent[0].method] | {"markersize": 7})


def equal_negatives(rows: Sequence[Row], metric: str) -> list[Curve]:
    arms = {"FedSS": ("fedss", False), "NegOnly": ("negonly", False), "NegOnly, |P_k| − 1 more": ("negonly", True)}
    drawn = []
    for number, (label, (method, extra)) in enumerate(arms.items()):
        own = [r for r in rows if r.method == method and bool(r.settings.get("extra_negatives")) == extra]
        own = sorted((r for r in own if "num_negatives" in r.settings), key=lambda r: r.settings["num_negatives"])
        if own:
            x, y = [r.settings["num_negatives"] for r in own], [r.scores[metric].mean for r in own]
            spread = [r.scores[metric].deviation or 0.0 for r in own]
            drawn.append(Curve(label, x, y, spread, figures.look(number)))
    return drawn


def confusion_pair(workdir: Path, rows: Sequence[Row]) -> dict[str, Drawing]:
    """FedSS beside NegOnly, both with the fewest negatives, as in the paper's figure 5."""
    found = {}
    for own in groups([row for row in rows if row.method in paper.SAMPLED]):
        path = workdir / own[0].done[0] / "findings.json"
        if path.exists():
            about = json.loads(path.read_text())["confusion"]
            caption = f"{own[0].label}: classes of client {about['client']}."
            found[caption] = figures.confusion(about["counts"], about["names"], own[0].label)
    return found


def whole_model(runs: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """A bar for it, if all runs have the same."""
    sizes = {(run["encoder_parameters"], run["num_classes"] * run["dim"]) for run in runs}
    if len(sizes) != 1:
        return {}
    encoder, rows = sizes.pop()
    return {"the whole model": (4e-6 * encoder, 4e-6 * rows)}


def megabytes(row: Row, summaries: Mapping[str, Mapping[str, Any]]) -> tuple[float, float]:
    about = summaries[row.done[0]]
    return 4e-6 * about["encoder_parameters"], 4e-6 * (row.received or 0) * about["dim"]
