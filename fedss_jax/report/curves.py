"""The learning curve of a run: loss and scores over rounds."""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.figure import Figure

SCORES = {  # metric -> (label, colour); Okabe-Ito colours, told apart by colour-blind readers
    "eval/map10": ("MAP@10, unseen classes", "#0072B2"),
    "eval/recall1": ("Recall@1, unseen classes", "#56B4E9"),
    "eval/top1": ("top-1, test", "#0072B2"),
    "train/top1": ("top-1, train", "#D55E00"),
}


def read(workdir: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def draw(workdir: Path, title: str) -> Path:
    """Reads metrics.jsonl, writes curves.png beside it."""
    lines = read(workdir)
    figure = Figure(figsize=(10, 4), layout="constrained")
    loss, score = figure.subplots(1, 2)
    loss.set(xlabel="round", ylabel="training loss")
    trained = [line for line in lines if "train/loss" in line]
    loss.plot([m["round"] for m in trained], [m["train/loss"] for m in trained], color="#0072B2", lw=1.2)
    for key, (label, colour) in SCORES.items():
        seen = [line for line in lines if key in line]
        if seen:
            rounds, values = [m["round"] for m in seen], [m[key] for m in seen]
            (line,) = score.plot(rounds, values, color=colour, marker=".", label=label)
            score.annotate(
                f"{values[-1]:.3f}", (rounds[-1], values[-1]), xytext=(5, 0),
                textcoords="offset points", va="center", color=line.get_color(), annotation_clip=False,
            )  # fmt: skip
    if ceilings := [line["eval/map10_ceiling"] for line in lines if "eval/map10_ceiling" in line]:
        score.axhline(ceilings[-1], color="#777777", lw=1, ls="--", label="ceiling of MAP@10")
    score.set(xlabel="round", ylabel="score", ylim=(0, 1))
    score.legend(loc="upper left", frameon=False, fontsize=9, ncols=2)
    for axes in (loss, score):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.suptitle(title, fontsize=11)
    path = workdir / "curves.png"
    figure.savefig(path, dpi=150)
    return path
