"""The page of one run, from the files in its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedss_jax.report import curves, figures, paper, render
from fedss_jax.report.render import Tile
from fedss_jax.report.summary import ATTENDANCE, NAMES, sent_back, total_attendance

HEADLINES = ("eval/map10", "eval/top1")  # a run has one of them


def write(folder: Path) -> Path:
    """Makes report.html and returns where it is."""
    summary, config = (json.loads((folder / name).read_text()) for name in ("summary.json", "config.json"))
    history = curves.read(folder)
    optional = {name: _read(folder / f"{name}.json") for name in ("findings", "gradient_noise")}
    findings, noise = optional["findings"], optional["gradient_noise"]
    final = summary["final"]
    names = {key: name for key, name in NAMES.items() if key in final}
    method = paper.METHODS.get(summary["method"], summary["method"])
    drawn: dict[str, Any] = {}
    if findings:
        counts = findings["confusion"]["counts"]
        drawn = {
            "difficulty": render.shown(figures.difficulty(findings["class_scores"], findings["score"])),
            "confusion": render.shown(figures.confusion(counts, findings["confusion"]["names"])),
            "confusion_right": f"{np.trace(np.array(counts)) / np.sum(counts):.0%}",
        }
    wire, totals = traffic(summary), total_attendance(history)
    parts = [("scores", "Scores"), ("curves", "Learning")]
    if findings:
        parts += [("gallery", "What it finds"), ("map", "Map"), ("classes", "Classes"), ("confusion", "Confusion")]
    parts += [("clients", "Clients")] if totals else []
    parts += [("traffic", "On the wire"), *([("noise", "Gradient noise")] if noise else []), ("made", "How")]
    sheet, noises = folder / "pictures.webp", figures.NOISES.items()
    return render.write(
        folder,
        "run.html",
        kind="a run",
        title=f"{method} on {summary['dataset']}",
        subtitle=f"{summary['task']}, {summary['rounds']:,} rounds, {summary['num_classes']:,} classes"
        f"{drawn_negatives(summary)}, seed {summary['seed']}",
        parts=parts,
        headline=headline(summary, config),
        tiles=tiles(summary, names),
        split=summary["split"],
        loss=render.shown(figures.loss(history), "Training loss, over rounds."),
        curves=render.shown(figures.scores(history, _shown_scores(names)), about_scores(summary), toggles=True),
        findings=findings,
        sheet=render.picture(sheet) if findings and findings["pictures"] else "",
        traffic=render.shown(figures.traffic(wire)) if wire else None,
        traffic_note=traffic_note(summary),
        attendance=became(totals),
        noise=[render.shown(figures.gradient_noise(noise, kind), name) for kind, name in noises] if noise else [],
        config=render.settings(config),
        times=times(summary),
        command=summary["command"],
        **drawn,
    )


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


def _shown_scores(names: Mapping[str, str]) -> dict[str, str]:
    """Not all of them in one figure."""
    wanted = ("eval/map10", "eval/recall1", "eval/top1", "train/top1")
    return {key: names[key] for key in wanted if key in names}


def about_scores(summary: Mapping[str, Any]) -> str:
    training = " and of training examples" if "train/top1" in summary["final"] else ""
    return f"Scores of the {summary['split']} examples{training}, over rounds."


def drawn_negatives(summary: Mapping[str, Any]) -> str:
    return f", m = {summary['num_negatives']}" if summary["method"] in paper.SAMPLED else ""


def headline(summary: Mapping[str, Any], config: Mapping[str, Any]) -> Tile:
    key = next(key for key in HEADLINES if key in summary["final"])
    final, start = summary["final"], summary["start"]
    note = f"{start[key]:.3f} before training"
    if f"{key}_ceiling" in final:
        note += f"; no model can pass {final[f'{key}_ceiling']:.3f}"
    if published := paper.look_up(config).get(key):
        note += f"; the paper: {published}"
    return Tile(NAMES[key], f"{final[key]:.3f}", note)


def tiles(summary: Mapping[str, Any], names: Mapping[str, str]) -> list[Tile]:
    final, start = summary["final"], summary["start"]
    made = [
        Tile(name, f"{final[key]:.3f}", f"{start[key]:.3f} before")
        for key, name in names.items()
        if key not in HEADLINES and key in start
    ]
    if sent := summary["communication"]:
        note = f"{sent['comm/bytes_down'] / _whole(summary):.0%} of the whole model"
        made.append(Tile("to a client in a round", f"{sent['comm/bytes_down'] / 1e6:.2f} MB", note))
    return made


def _whole(summary: Mapping[str, Any]) -> float:
    """Bytes of the whole model."""
    return 4 * (summary["encoder_parameters"] + summary["num_classes"] * summary["dim"])


def traffic(summary: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Bars in MB; none if nobody is federated."""
    if not summary["communication"]:
        return {}
    encoder, row = 4e-6 * summary["encoder_parameters"], 4e-6 * summary["dim"]
    return {
        "a client here": (encoder, summary["communication"]["comm/classes"] * row),
        "the whole model": (encoder, summary["num_classes"] * row),
    }


def traffic_note(summary: Mapping[str, Any]) -> str:
    sent = summary["communication"]
    if not sent:
        return ""
    saved = 1 - sent["comm/bytes_down"] / _whole(summary)
    return (
        f"A mean client received {sent['comm/classes']:,.0f} of {summary['num_classes']:,} rows of W and the encoder,"
        f" and {sent_back(sent)}: {saved:.1%} less than the whole model. Counted in float32 parameters."
    )


def became(totals: Mapping[str, int]) -> list[list[str]]:
    """Of a run's clients; nothing where nothing was told."""
    if not totals:
        return []
    idle = ["rounds in which the server took no step", f"{totals['idle']:,} of {totals['rounds']:,}"]
    return [*([f"clients that {words}", f"{totals[name]:,}"] for name, words in ATTENDANCE.items()), idle]


def times(summary: Mapping[str, Any]) -> list[list[str]]:
    return [
        ["rounds a second", f"{summary['rounds_per_second']:.2f}"],
        ["seconds in all", f"{summary['seconds']:.1f}"],
        ["compiling", f"{summary['seconds_compiling']:.1f}"],
        ["training", f"{summary['seconds_training']:.1f}"],
        ["waiting for data", f"{summary['seconds_waiting_for_data']:.1f}"],
        ["computed slots that held an example", f"{summary['real_share_of_slots']:.1%}"],
        ["training examples from", summary["residency"]],
        ["devices", summary["devices"]],
        ["JAX", summary["jax"]],
    ]
