"""Tables in text files, written by anyone: whatever is wrong with one is told with its line number."""

from __future__ import annotations

import csv
import dataclasses
import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedss_jax.types import UserError


@dataclasses.dataclass(frozen=True)
class Table:
    path: Path
    lines: Sequence[int]  # [N] where each row stands in the file, for messages
    columns: dict[str, list[str]]  # each [N]

    def __len__(self) -> int:
        return len(self.lines)

    def take(self, rows: Sequence[int]) -> Table:
        columns = {name: [values[row] for row in rows] for name, values in self.columns.items()}
        return Table(self.path, [self.lines[row] for row in rows], columns)


def read_table(path: Path, columns: Sequence[str], delimiter: str = ",") -> Table:
    """The named columns of a file whose first line names its columns, in any order; others are ignored."""
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):  # reading a pipe would never end
        raise UserError(f"cannot read {path}: it is not a file; correct the path")
    header = delimiter.join(columns)
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:  # sig: spreadsheets like to begin with a mark
            reader = csv.reader(file, delimiter=delimiter, skipinitialspace=True)
            found = [name.strip() for name in next(reader, [])]
            if not found:
                raise UserError(f"{path} is empty; it must begin with the header {header!r}")
            if not set(columns) <= set(found):
                begins = delimiter.join(found)[:80]
                raise UserError(f"{path} must begin with the header {header!r}, but begins with {begins!r}; correct it")
            places = [found.index(name) for name in columns]
            for row in reader:
                if row:  # not a blank line
                    rows.append(_fields(row, places, columns, len(found), f"{path} line {reader.line_num}"))
                    lines.append(reader.line_num)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}; correct the path") from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise UserError(f"{path} is not UTF-8 (a byte is {byte:#04x}); save it as UTF-8") from None
    except csv.Error as error:
        raise UserError(f"{path} line {reader.line_num} cannot be read: {error}; correct that line") from None
    if not rows:
        raise UserError(f"{path} has a header but no rows; add some")
    return Table(path, lines, {name: list(values) for name, values in zip(columns, zip(*rows))})


def _fields(row: list[str], places: list[int], columns: Sequence[str], width: int, where: str) -> list[str]:
    if len(row) != width:
        hint = "complete it" if len(row) < width else "put quotes around values with the separator in them"
        raise UserError(f"{where} has {len(row)} fields, but the header has {width}; {hint}")
    fields = [row[place] for place in places]
    for name, value in zip(columns, fields):
        if not value:
            raise UserError(f"{where} has an empty {name}; fill it in or delete the line")
        if "\0" in value:
            raise UserError(f"{where} has a zero byte in its {name}; save the file as plain UTF-8 text")
    return fields


def integers(table: Table, column: str) -> np.ndarray:
    """A column of whole numbers, [N] int64."""
    numbers = np.empty(len(table), np.int64)
    for row, text in enumerate(table.columns[column]):
        if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
            raise UserError(
                f"{table.path} line {table.lines[row]} has {column} {text[:40]!r}; it must be a whole number, 0 or more"
            )
        numbers[row] = int(text)
    return numbers


def check_paths(table: Table, column: str, *, flat: bool = False) -> None:
    """Refuses what could lead out of the data folder, on any system. flat: names only, without folders."""
    for text, line in zip(table.columns[column], table.lines):
        parts = re.split(r"[/\\]", text)
        if ".." in parts or not parts[0] or re.match(r"[A-Za-z]:", text) or (flat and len(parts) > 1):
            kind = "a plain name" if flat else "a path below the data folder, without '..'"
            raise UserError(f"{table.path} line {line} has {column} {text[:80]!r}; it must be {kind}")


def without_repeats(table: Table, key: Sequence[str], label: str) -> tuple[Table, int]:
    """The table without rows that repeat another, and how many there were. One key with two labels is an error."""
    first: dict[tuple[str, ...], int] = {}
    labels = table.columns[label]
    kept = []
    for row, values in enumerate(zip(*(table.columns[name] for name in key))):
        before = first.setdefault(values, row)
        if before == row:
            kept.append(row)
        elif labels[before] != labels[row]:
            raise UserError(
                f"{table.path} lines {table.lines[before]} and {table.lines[row]} give {' '.join(values)[:80]!r} the"
                f" {label} {labels[before][:40]!r} and {labels[row][:40]!r}; delete one of them"
            )
    repeats = len(table) - len(kept)
    return (table.take(kept) if repeats else table), repeats


def read_pictures(
    path: Path, columns: Sequence[str], key: Sequence[str], label: str, notes: list[str], delimiter: str = ","
) -> Table:
    """A table of pictures, whose paths are the key's last column; of repeated rows the first, and a note of them."""
    table = read_table(path, columns, delimiter)
    check_paths(table, key[-1])
    table, repeats = without_repeats(table, key, label)
    if repeats:
        notes.append(f"{repeats} repeated lines of {path.name} were left out")
    return table


def distinct(tables: Sequence[Table], column: str) -> tuple[list[str], list[np.ndarray]]:
    """The distinct values of a column in all tables, in the order that they come, and each table's numbers of them."""
    numbers: dict[str, int] = {}
    rows = [np.array([numbers.setdefault(text, len(numbers)) for text in table.columns[column]]) for table in tables]
    return list(numbers), rows
