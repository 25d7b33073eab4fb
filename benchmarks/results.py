"""How benchmarks show what they measured: a table to read, and the same as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Of a benchmark's command line; its numbers go to a file in --out."""
    made = argparse.ArgumentParser(description=(doc or "").strip(), formatter_class=argparse.RawTextHelpFormatter)
    made.add_argument("--out", type=Path, default=Path("runs/bench"), help="folder for the JSON file")
    return made


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns as wide as they need to be: the first to the left, the others to the right."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = []
    for row in cells:
        aligned = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "jax": version("jax"),
        "fedss_jax": version("fedss_jax"),
    }


def save(folder: Path, name: str, results: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), "results": results}, indent=2) + "\n")
    print(f"({path})\n", flush=True)
