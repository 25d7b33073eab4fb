"""A sweep's results as a table: mean and deviation over seeds, the paper's figures beside them, what failed and why."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedss_jax.report import paper
from fedss_jax.report.summary import NAMES

SAME = 1e-3  # between scores


class Score(NamedTuple):
    """One metric over the seeds of a row."""

    values: tuple[float, ...]
    paper: paper.Figure | None = None
    show_best: bool = False

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def deviation(self) -> float | None:
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None

    def __str__(self) -> str:
        spread = "" if self.deviation is None else f" ± {self.deviation:.3f}"
        best = f" (best {max(self.values):.3f})" if self.show_best and len(self.values) > 1 else ""
        return f"{self.mean:.3f}{spread}{best}"


class Row(NamedTuple):
    """Cells that differ only in their seed."""

    label: str
    method: str
    scores: Mapping[str, Score]
    received: float | None  # classes that a client gets in a round; None if nobody is federated
    done: Sequence[str]  # names of the finished cells
    failed: Mapping[str, str]  # name -> reason
    settings: Mapping[str, Any] = {}  # what makes the row, but for the seed


def read(workdir: Path) -> list[Row]:
    """The rows of a sweep, from its sweep.json and from what its cells have left; the first, where all began alike."""
    told = json.loads((workdir / "sweep.json").read_text())
    by_label: dict[str, list[dict[str, Any]]] = {}
    for cell in told["cells"]:
        by_label.setdefault(cell["row"], []).append(cell)
    rows: list[Row] = []
    starts: dict[int, list[Mapping[str, float]]] = {}  # scores before training, by seed
    for label, cells in by_label.items():
        runs, done = [], []
        for cell in cells:
            path = workdir / cell["name"] / "summary.json"
            if path.exists():
                runs.append(json.loads(path.read_text()))
                done.append(cell["name"])
                starts.setdefault(runs[-1]["seed"], []).append(runs[-1]["start"])
        failed = {cell["name"]: told["failed"][cell["name"]] for cell in cells if cell["name"] in told["failed"]}
        config = json.loads((workdir / done[0] / "config.json").read_text()) if done else {}
        settings = {key: value for key, value in cells[0]["settings"].items() if key != "seed"}
        rows.append(_row(label, runs, config, done, failed)._replace(settings=settings))
    if starts and all(_alike(each) for each in starts.values()):
        rows.insert(0, Row("before training", "", _scores([each[0] for each in starts.values()]), None, [], {}))
    return rows


def _alike(starts: Sequence[Mapping[str, float]]) -> bool:
    """Whether they are one and the same model's, up to rounding; not so where cells differ in their encoder or data."""
    first = starts[0]
    return all(each.keys() == first.keys() and all(abs(each[k] - first[k]) < SAME for k in first) for each in starts)


def _row(
    label: str,
    runs: Sequence[Mapping[str, Any]],
    config: Mapping[str, Any],
    done: Sequence[str],
    failed: Mapping[str, str],
) -> Row:
    if not runs:
        return Row(label, "", {}, None, done, failed)
    method, finals = runs[0].get("method", ""), [run["final"] for run in runs]
    published = paper.look_up(config) if method in paper.METHODS else {}
    scores = {
        key: score._replace(paper=published.get(key), show_best=method in paper.BEST_OF_RUNS)
        for key, score in _scores(finals).items()
    }
    received = [run["communication"].get("comm/classes") for run in runs]
    return Row(label, method, scores, None if None in received else float(np.mean(received)), done, failed)


def _scores(found: Sequence[Mapping[str, float]]) -> dict[str, Score]:
    keys = [key for key in NAMES if all(key in each for each in found)]
    return {key: Score(tuple(each[key] for each in found)) for key in keys}


def cells(rows: Sequence[Row], *, with_failures: bool = True) -> tuple[list[str], list[list[str]]]:
    """The table as text, titles and rows: what Markdown and LaTeX show, and (failures apart) the page."""
    metrics = _metrics(rows)
    published = [key for key in metrics if any(key in row.scores and row.scores[key].paper for row in rows)]
    failures = with_failures and any(row.failed for row in rows)
    titles = [""]
    for key in metrics:
        titles += [NAMES[key], *(["paper"] if key in published else [])]
    titles += ["classes a client receives", "seeds", *(["failed"] if failures else [])]
    lines = []
    for row in rows:
        line = [row.label]
        for key in metrics:
            score = row.scores.get(key)
            line.append(str(score) if score else "–")
            if key in published:
                line.append(str(score.paper) if score and score.paper else "")
        seeds = len(next(iter(row.scores.values())).values) if row.scores else 0
        received = "" if not row.method else "–" if row.received is None else f"{row.received:,.0f}"
        line += [received, str(seeds)]
        if failures:
            line.append("; ".join(f"{name}: {reason}" for name, reason in row.failed.items()))
        lines.append(line)
    return titles, lines


def _metrics(rows: Sequence[Row]) -> list[str]:
    """Those that any row has."""
    return [key for key in NAMES if any(key in row.scores for row in rows)]


def markdown(rows: Sequence[Row]) -> str:
    titles, lines = cells(rows)

    def line(texts: Sequence[str]) -> str:
        return "| " + " | ".join(" ".join(text.replace("|", "\\|").split()) for text in texts) + " |"

    return "\n".join([line(titles), "|" + "---|" * len(titles), *map(line, lines)]) + "\n"


def comma_separated(rows: Sequence[Row]) -> str:
    """Numbers in full, one column each, for other programs."""
    out = io.StringIO()
    metrics = _metrics(rows)
    parts = ("mean", "std", "best", "paper", "paper_std")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["row", "method", *(f"{key} {part}" for key in metrics for part in parts), "classes", "seeds", "failed"]
    )
    for row in rows:
        line: list[Any] = [row.label, row.method]
        for key in metrics:
            if score := row.scores.get(key):
                published = score.paper or paper.Figure(np.nan, None)
                numbers = [score.mean, score.deviation, max(score.values), *published]
            else:
                numbers = [None] * len(parts)
            line += ["" if number is None or np.isnan(number) else number for number in numbers]
        failed = "; ".join(f"{name}: {reason}" for name, reason in row.failed.items())
        seeds = len(next(iter(row.scores.values())).values) if row.scores else 0
        writer.writerow([*line, "" if row.received is None else row.received, seeds, failed])
    return out.getvalue()


_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--"}
_LATEX |= {"−": "$-$", "|": r"\textbar{}", "<": r"\textless{}", ">": r"\textgreater{}"}
_LATEX |= {character: "\\" + character for character in "&%$#_{}"}


def latex(rows: Sequence[Row]) -> str:
    """A tabular with booktabs' rules."""
    titles, lines = cells(rows)

    def line(texts: Sequence[str]) -> str:
        return " & ".join("".join(_LATEX.get(c, c) for c in " ".join(text.split())) for text in texts) + r" \\"

    columns = "l" + "c" * (len(titles) - 1)
    body = [line(titles), r"\midrule", *map(line, lines)]
    return "\n".join([rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *body, r"\bottomrule", r"\end{tabular}"]) + "\n"


FORMATS = {"table.md": markdown, "table.csv": comma_separated, "table.tex": latex}


def write(workdir: Path, rows: Sequence[Row]) -> None:
    for name, form in FORMATS.items():
        (workdir / name).write_text(form(rows))
