"""Reads the text of a compiled program: what runs how often, what it moves, and what the TPU compiler says of its time.

A program is a set of functions; the one that is run is ENTRY. Loops and choices call others:

    program = read(compiled.as_text())
    for times, instruction in executed(program, {"lanes": 13.2}):
        ...
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property

INSTRUCTION = re.compile(r"\s+(?:ROOT )?%([\w.-]+) = (.*?[\])}]) ([\w-]+)\((.*)")
ARRAY = re.compile(r"([a-z]+)(\d*)\w*\[([\d,]*)\](?:\{([\d,]*)((?::|S)[^}]*)?\})?")
NAME = re.compile(r"%([\w.-]+)")
COLLECTIVE = re.compile(r"(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?")
# They move nothing, or (the starts) move it while something else computes.
FREE = re.compile(
    r"parameter|constant|bitcast|tuple|get-tuple-element|after-all|partition-id|.*-start|.*-done|custom-call"
)
PICKS = ("dynamic-slice", "gather", "slice")  # of their first operand they read no more than they return
PUTS = {"dynamic-update-slice": 1, "scatter": 2}  # they write what that operand holds into their first one, in place


class Instruction:
    """One line of a function."""

    def __init__(self, name: str, shape: str, opcode: str, rest: str, is_root: bool):
        self.name, self.shape, self.opcode, self.is_root = name, shape, opcode, is_root
        self._rest = rest

    def __repr__(self) -> str:
        return f"%{self.name} = {self.shape} {self.opcode}({self._rest}"

    @cached_property
    def operands(self) -> list[str]:
        return NAME.findall(self._rest.split(")", 1)[0])

    def attribute(self, pattern: str) -> str | None:
        """What the pattern's group matches in all that follows the operands."""
        found = re.search(pattern, self._rest)
        return found[1] if found else None

    @cached_property
    def op_name(self) -> str:
        """Where it comes from: the path of JAX's names, such as jit(run)/shard_map/lanes/while."""
        return self.attribute(r'op_name="([^"]*)"') or ""

    @cached_property
    def cycles(self) -> int | None:
        """The TPU compiler's estimate, if it has one."""
        found = self.attribute(r'"estimated_cycles":"(\d+)"')
        return int(found) if found else None

    @cached_property
    def branches(self) -> list[str]:
        """A choice's ways; of a yes-or-no, no comes first."""
        listed = self.attribute(r"branch_computations=\{([^}]*)\}")
        if listed is not None:
            return NAME.findall(listed)
        ways = (self.attribute(rf"{way}_computation=%([\w.-]+)") for way in ("false", "true"))
        return [way for way in ways if way]

    @cached_property
    def called(self) -> str | None:
        return self.attribute(r"(?:calls|to_apply)=%([\w.-]+)")


Function = dict[str, Instruction]
Program = dict[str, Function]
Run = tuple[float, Instruction, Function]  # how often, what, and where it stands


def read(text: str) -> Program:
    program = {}
    for block in re.split(r"\n(?=%|ENTRY)", text):
        head, *lines = block.splitlines() or [""]
        found = [(match, line) for line in lines if (match := INSTRUCTION.match(line))]
        name = "ENTRY" if head.startswith("ENTRY") else head.split(" ")[0].lstrip("%")
        program[name] = {m[1]: Instruction(m[1], m[2], m[3], m[4], "ROOT " in line[: m.start(1)]) for m, line in found}
    return program


def num_bytes(shape: str, memory_only: bool = False) -> float:
    """Of an array or a tuple, as it lies in memory: in tiles. memory_only: leaves out what is kept on the chip."""
    total = 0.0
    for _, bits, dims, order, layout in ARRAY.findall(shape):
        if memory_only and "S(" in layout:
            continue
        tile = re.search(r"T\(([\d,]+)\)", layout)
        sizes = [int(size) for size in dims.split(",") if size]
        minor_first = [sizes[int(axis)] for axis in order.split(",") if axis] or sizes
        tiles = [int(size) for size in tile[1].split(",")][::-1] if tile else []
        padded = [-(-size // t) * t for size, t in zip(minor_first, tiles, strict=False)]
        total += math.prod([*padded, *minor_first[len(padded) :]]) * int(bits or 8) / 8
    return total


def executed(program: Program, expected: Mapping[str, float], unknown: set[str] | None = None) -> Iterator[Run]:
    """All that runs, and how often; of loops, choices and calls what is in them.

    expected: what the text cannot tell, by the innermost of JAX's named scopes. For a loop, how often it goes around;
    for a choice between two ways, how often it goes the second, which for lax.cond is that of True.
    A loop of which nothing is known counts once, a choice as if it went all its ways; their names go into `unknown`.
    """

    def walk(function: Function, times: float) -> Iterator[Run]:
        for instruction in function.values():
            name, opcode = instruction.op_name, instruction.opcode
            scope = (name.split("/")[-2:-1] or [""])[0]
            if opcode == "while":
                trips = expected.get(scope) or trip_count(program, instruction)
                if trips is None and unknown is not None:
                    unknown.add(name)
                body = instruction.attribute(r"body=%([\w.-]+)") or ""
                yield from walk(program[body], times * (1 if trips is None else trips))
            elif opcode == "conditional":
                second = expected.get(scope)
                if second is None and unknown is not None:
                    unknown.add(name)
                shares = [1.0] * len(instruction.branches) if second is None else [1 - second, second]
                for branch, share in zip(instruction.branches, shares, strict=True):
                    yield from walk(program[branch], times * share)
            elif opcode == "call":
                yield from walk(program[instruction.called or ""], times)
            else:
                yield times, instruction, function

    yield from walk(program["ENTRY"], 1.0)


def trip_count(program: Program, loop: Instruction) -> float | None:
    """How often a loop of fixed length goes around: as the compiler notes it, or as JAX's scans count, from 0 up."""
    noted = loop.attribute(r'"known_trip_count":\{"n":"(\d+)"')
    if noted:
        return float(noted)
    condition = program[loop.attribute(r"condition=%([\w.-]+)") or ""]
    root = next(instruction for instruction in condition.values() if instruction.is_root)
    if root.opcode != "compare" or root.attribute(r"direction=(\w+)") != "LT":
        return None
    counter, limit = (condition[operand] for operand in root.operands)
    until = limit.attribute(r"^(\d+)\)") if limit.opcode == "constant" else None
    return float(until) if until and counter.opcode == "get-tuple-element" else None


def moved(program: Program, instruction: Instruction, function: Function) -> float:
    """Bytes of the device's memory that an instruction of a function reads and writes.

    Who picks rows out of an array reads those rows only, and who puts rows into one, in place, writes only those; also
    as part of a fusion.
    """
    if instruction.opcode == "copy-start":  # its result holds both its ends
        return num_bytes(instruction.shape, memory_only=True)
    if instruction.opcode == "slice-start":  # its result holds all that it cuts from, and the slice
        return num_bytes(instruction.shape) - num_bytes(function[instruction.operands[0]].shape)
    if FREE.fullmatch(instruction.opcode):
        return 0.0
    given = [function[name] for name in instruction.operands]
    inner, places, results = function, instruction.operands, [instruction]
    users = [instruction]
    if instruction.opcode == "fusion":
        inner = program[instruction.called or ""]
        users = [*inner.values()]
        numbered = {i.attribute(r"^(\d+)\)"): name for name, i in inner.items() if i.opcode == "parameter"}
        places = [numbered[str(i)] for i in range(len(given))]
        root = next(i for i in users if i.is_root)
        results = [inner[name] for name in root.operands] if root.opcode == "tuple" else [root]

    def uses(array: str) -> list[tuple[Instruction, bool]]:
        """Who works with an array, and whether as its first operand; a bitcast only hands it on."""
        by = [user for user in users if array in user.operands]
        handed_on = [use for user in by if user.opcode == "bitcast" for use in uses(user.name)]
        return [*handed_on, *((u, u.operands[0] == array) for u in by if u.opcode != "bitcast")]

    total = 0.0
    for place, operand in zip(places, given, strict=True):
        size, by = num_bytes(operand.shape, memory_only=True), uses(place)
        if by and all(is_first and user.opcode in PICKS for user, is_first in by):
            size = min(size, sum(num_bytes(user.shape) for user, _ in by))
        elif by and all(is_first and user.opcode in PUTS for user, is_first in by):
            size = 0.0
        total += size
    written = [array[0] for array in ARRAY.finditer(instruction.shape)]
    if len(results) != len(written):  # such as of a sort of several arrays
        return total + num_bytes(instruction.shape, memory_only=True)
    for result, shape in zip(results, written, strict=True):
        while result.opcode == "bitcast":
            result = inner[result.operands[0]]
        put = PUTS.get(result.opcode)
        size = num_bytes(shape, memory_only=True)
        total += min(size, num_bytes(inner[result.operands[put]].shape)) if put else size
    return total


def sent(program: Program, instruction: Instruction, function: Function, devices: int) -> dict[str, float]:
    """Bytes that each of so many devices sends to others, by kind of collective; also as part of a fusion."""
    match = COLLECTIVE.fullmatch(instruction.opcode)
    if match is None:
        # Only fusions and what starts beside others: a reduction or a sort calls a function for each element.
        called = instruction.called if instruction.opcode in ("fusion", "async-start") else None
        inner = program[called] if called else {}
        total: Counter[str] = Counter()
        for part in inner.values():
            total.update(sent(program, part, inner, devices))
        return dict(total)
    given = sum(num_bytes(function[name].shape) for name in instruction.operands if name in function)
    others = (devices - 1) / devices
    # Around a ring: a sum goes around twice, once to be added up and once to be told.
    share = {"all-reduce": 2 * others, "all-gather": devices - 1.0, "collective-permute": 1.0}
    return {match[1]: share.get(match[1], others) * given}
