"""A run in a few lines of text: the last thing that it prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

NAMES = {
    "eval/map10": "MAP@10",
    "eval/map_r": "MAP@R",
    "eval/recall1": "Recall@1",
    "eval/recall10": "Recall@10",
    "eval/recall100": "Recall@100",
    "eval/top1": "top-1",
    "train/top1": "train top-1",
}


def table(summary: Mapping[str, Any]) -> str:
    """Scores at the start and at the end."""
    start, final = summary["start"], summary["final"]
    lines = [f"{'':12} {'start':>8} {'end':>8}"]
    for key, name in NAMES.items():
        if key in final:
            lines.append(f"{name:12} {start[key]:8.4f} {final[key]:8.4f}")
    if "eval/map10_ceiling" in final:
        lines[1] += f"   (no model can pass {final['eval/map10_ceiling']:.4f}: classes have few pictures)"
    return "\n".join(lines)


ATTENDANCE = {
    "chosen": "were chosen",
    "dropped": "dropped out",
    "late": "came too late",
    "non_finite": "sent what is not finite",
    "clipped": "were shortened",
    "counted": "counted",
}


def total_attendance(history: Iterable[Mapping[str, float]]) -> dict[str, int]:
    """What became of all clients of a run, from its lines of metrics; nothing if none says so."""
    told = [line for line in history if "clients/chosen" in line]
    totals = {name: int(sum(line[f"clients/{name}"] for line in told)) for name in ATTENDANCE}
    return totals | {"rounds": len(told), "idle": sum(not line["server/steps"] for line in told)} if told else {}


def attendance(history: Iterable[Mapping[str, float]]) -> str:
    """The same in a sentence."""
    totals = total_attendance(history)
    if not totals:
        return ""
    became = ", ".join(f"{totals[name]:,} {words}" for name, words in ATTENDANCE.items())
    idle = f"; in {totals['idle']:,} the server took no step" if totals["idle"] else ""
    return f"clients in the {totals['rounds']:,} rounds that say so: {became}{idle}"


def costs(summary: Mapping[str, Any], dim: int) -> str:
    """What a client sends and receives, against the whole model; and the time."""
    sent, lines = summary["communication"], []
    if sent:
        whole = 4 * (summary["encoder_parameters"] + summary["num_classes"] * dim)
        lines.append(
            f"a client received {sent['comm/classes']:,.0f} of {summary['num_classes']:,} classes a round:"
            f" {sent['comm/bytes_down'] / 1e6:.2f} MB, and {sent_back(sent)} (the whole model: {whole / 1e6:.2f} MB)"
        )
    waiting = ""
    if summary["residency"] != "device":
        waiting = f" ({summary['seconds_waiting_for_data']:.1f} s of it waiting for data)"
    lines.append(
        f"{summary['rounds_per_second']:.2f} rounds/s; {summary['seconds']:.0f} s in all,"
        f" {summary['seconds_training']:.0f} s training{waiting}, {summary['seconds_compiling']:.0f} s compiling"
    )
    return "\n".join(lines)


def sent_back(communication: Mapping[str, float]) -> str:
    """What a mean client did, once it was done; less than it received, if not all reported."""
    down, up = communication["comm/bytes_down"], communication["comm/bytes_up"]
    return "sent as much back" if up == down else f"sent {up / 1e6:.2f} MB back (not all did)"
