"""What a compiled round takes of a device: memory, traffic and, of a TPU, time."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedss_jax import chips
from fedss_jax.analysis import hlo

# What the arguments of a round are, by how their names begin; the first that fits.
ARGUMENTS = {"rows": "state.rows", "encoder": "state.", "examples": "inputs[0]"}
OTHERS = "population"  # labels, and who holds what


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of one device."""

    limit: float
    needed: float
    arguments: dict[str, float]  # by the names in ARGUMENTS
    temporaries: float | None  # None where it does not fit: of that the compiler tells only the sum
    program: float = 0.0
    outputs: float = 0.0  # besides those that take an argument's place
    ahead: float = 0.0  # examples of the next rounds, which are sent while this one runs

    @property
    def fits(self) -> bool:
        return self.needed <= self.limit


@dataclasses.dataclass(frozen=True)
class Traffic:
    """What a device does in a round."""

    moved: float  # bytes that it reads and writes in its memory
    sent: dict[str, float]  # bytes to other devices, by kind of collective
    estimated: float | None  # seconds by the compiler's estimate; None where it has none
    unestimated: float  # seconds of operations that it has none for, by the bytes that they move
    sending: float  # seconds
    unknown: tuple[str, ...]  # loops of unknown length, counted once

    @property
    def seconds(self) -> float | None:
        return None if self.estimated is None else self.estimated + self.unestimated + self.sending


def size_of(array: Any) -> float:
    """Bytes of an array that is given by shape and place."""
    return float(math.prod(array.shape)) * array.dtype.itemsize


def share_of(array: Any) -> float:
    """The same on one device."""
    return float(math.prod(array.sharding.shard_shape(array.shape))) * array.dtype.itemsize


def part_of(name: str) -> str:
    return next((part for part, start in ARGUMENTS.items() if name.startswith(start)), OTHERS)


def too_large(message: str, limit: float, arguments: Mapping[str, Any], ahead: float) -> Memory:
    """From the compiler's complaint, whose first number of bytes is what the program needs.

    arguments: trees of shapes and places, by the name of the round's argument. The compiler's padding is not counted.
    """
    number, unit = re.findall(r"([\d.]+)([KMGT])\b", message)[0]
    found: dict[str, float] = defaultdict(float)
    for argument, tree in arguments.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                found[part_of(argument + jax.tree_util.keystr(path))] += share_of(leaf)
    return Memory(limit, float(number) * 1024.0 ** " KMGT".index(unit) + ahead, dict(found), None, ahead=ahead)


def read_memory(analysis: Any, program: hlo.Program, limit: float, ahead: float) -> Memory:
    """analysis: what XLA says of the compiled program's memory. ahead: bytes of examples that are sent ahead."""
    outputs = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    code, temporaries = analysis.generated_code_size_in_bytes, analysis.temp_size_in_bytes
    arguments: dict[str, float] = defaultdict(float)
    for instruction in program["ENTRY"].values():
        if instruction.opcode == "parameter":
            arguments[part_of(instruction.op_name)] += hlo.num_bytes(instruction.shape)
    needed = analysis.argument_size_in_bytes + outputs + code + temporaries + ahead
    return Memory(limit, needed, dict(arguments), temporaries, code, outputs, ahead)


def read_traffic(
    program: hlo.Program, often: Mapping[str, float], chip: chips.Chip | None, devices: Sequence[jax.Device]
) -> Traffic:
    """often: how often parts of the program run that are not of fixed length, as `hlo.executed` takes it.

    Sending is counted as if all links of a chip carried it and nothing else was done meanwhile.
    """
    moved = cycles = by_bytes = messages = 0.0
    sent: dict[str, float] = defaultdict(float)
    unknown: set[str] = set()
    for times, instruction, function in hlo.executed(program, often, unknown):
        size = hlo.moved(program, instruction, function)
        moved += times * size
        travels = hlo.sent(program, instruction, function, len(devices))
        for kind, sent_size in travels.items():
            sent[kind] += times * sent_size
            messages += times * (2 if kind == "all-reduce" else 1)
        if instruction.cycles is not None:
            cycles += times * instruction.cycles
        elif not travels and not hlo.FREE.fullmatch(instruction.opcode):
            by_bytes += times * size
    names = tuple(sorted(unknown))
    if chip is None:
        return Traffic(moved, dict(sent), None, 0.0, 0.0, names)
    sending = sum(sent.values()) / chip.links + messages * chips.hops(devices) * chips.SECONDS_PER_HOP
    return Traffic(moved, dict(sent), cycles / chip.clock, by_bytes / chip.bandwidth, sending, names)
