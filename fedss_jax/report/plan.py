"""A plan as a block of text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

ARGUMENTS = {
    "rows": "W and what its optimizer keeps",
    "encoder": "encoder",
    "examples": "the round's examples",
    "population": "labels and who holds what",
}
WIDTH, LINE = 16, 110


def block(plan: Mapping[str, Any]) -> str:
    """plan: as plan.json has it."""
    above = [plan["what"], f"on {plan['machine']}: {plan['layout']}", *plan["notes"]]
    lines = [line for text in above for line in textwrap.wrap(text, LINE, subsequent_indent="  ")] + [""]
    lines += [f"{name:<{WIDTH}}{text}" for name, text in _memory(plan["memory"])]
    lines += [f"{'what to change' if i == 0 else '':<{WIDTH}}{text}" for i, text in enumerate(plan["remedies"])]
    if plan["traffic"]:
        lines += [f"{name:<{WIDTH}}{text}" for name, text in _round(plan)]
    lines.append(f"{'compiled':<{WIDTH}}in {duration(plan['compile_seconds'])}; nothing was run")
    return "\n".join(lines)


def _memory(memory: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    fits = memory["needed"] <= memory["limit"]
    verdict = "yes" if fits else "NO"
    yield (
        "fits",
        f"{verdict}: {size(memory['needed'])} of the {size(memory['limit'])} of a device"
        f" ({memory['needed'] / memory['limit']:.1%})",
    )
    for name, title in ARGUMENTS.items():
        if name in memory["arguments"]:
            yield "", f"{size(memory['arguments'][name]):>9}  {title}"
    if memory["temporaries"] is None:
        known = sum(memory["arguments"].values()) + memory["ahead"]
        yield "", f"{size(memory['needed'] - known):>9}  what the round works with, about"
    for name, title in (
        ("temporaries", "what the round works with"),
        ("program", "the program"),
        ("outputs", "results, besides those that take an argument's place"),
        ("ahead", "examples of the next rounds, sent ahead"),
    ):
        if memory[name]:
            yield "", f"{size(memory[name]):>9}  {title}"


def _round(plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    work, traffic, chip = plan["work"], plan["traffic"], plan["chip"]
    seconds = seconds_per_round(plan)
    real = work["examples"] / work["slots"]
    per_second = f", {work['examples'] / seconds:,.0f} a second" if seconds else ""
    yield "a round", f"{work['examples']:,.0f} examples{per_second}; {real:.1%} of the slots that are computed are real"
    if "lanes" in work["often"]:
        yield "", f"{work['often']['lanes']:.1f} steps of the longest lane"
    if seconds:
        yield "seconds", f"{seconds:.4g} a round, estimated:"
        for key, title in (
            ("estimated", "by the compiler"),
            ("unestimated", "of operations that it has no estimate for, by the bytes that they move"),
            ("sending", "between chips, by the bandwidth of their links and a microsecond a hop"),
        ):
            yield "", f"{traffic[key]:>9.6f}  {title}"
    rate = (
        f", {work['operations'] / seconds / plan['devices'] / chip['peak']:.1%} of the chips' peak" if seconds else ""
    )
    yield "model FLOPs", f"{work['operations']:.3g} a round{rate}"
    rate = f", {traffic['moved'] / seconds / chip['bandwidth']:.0%} of its bandwidth" if seconds else ""
    yield "memory traffic", f"{size(traffic['moved'])} a device and round{rate}"
    if traffic["sent"]:
        kinds = ", ".join(f"{kind} {size(sent)}" for kind, sent in sorted(traffic["sent"].items()))
        yield "between chips", f"{size(sum(traffic['sent'].values()))} sent by each in a round: {kinds}"
    if plan["streamed"]:
        rate = f", {size(plan['streamed'] / seconds)} a second" if seconds else ""
        yield "from the hosts", f"{size(plan['streamed'])} of examples a round{rate}"
    for name in traffic["unknown"]:
        yield "not known", f"how often {name} runs; counted once"
    run = f"{plan['rounds']:,} rounds"
    yield "the run", f"{run}: {duration(plan['rounds'] * seconds)}, evaluation apart" if seconds else run


def seconds_per_round(plan: Mapping[str, Any]) -> float | None:
    traffic = plan["traffic"]
    if not traffic or traffic["estimated"] is None:
        return None
    return traffic["estimated"] + traffic["unestimated"] + traffic["sending"]


def size(number: float) -> str:
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if number >= scale:
            return f"{number / scale:.2f} {unit}"
    return f"{number / 1e3:.2f} kB"


def duration(seconds: float) -> str:
    for unit, scale, least in (("days", 86400.0, 2), ("hours", 3600.0, 2), ("minutes", 60.0, 2)):
        if seconds >= least * scale:
            return f"{seconds / scale:.1f} {unit}"
    return f"{seconds:.1f} seconds"
