"""Makes the page of a run, or of a sweep as far as it is, again: python -m fedss_jax.report runs/mine [...]"""

from __future__ import annotations

import sys
from pathlib import Path

from fedss_jax.report import run_page, sweep_page, tables


def main(folders: list[str]) -> None:
    if not folders:
        sys.exit("error: no folder was given; name that of a run or of a sweep, such as runs/mine")
    for folder in map(Path, folders):
        if (folder / "sweep.json").exists():
            rows = tables.read(folder)
            tables.write(folder, rows)
            print(sweep_page.write(folder, rows))
        elif (folder / "summary.json").exists():
            print(run_page.write(folder))
        else:
            sys.exit(f"error: {folder} has neither a sweep.json nor a summary.json; name a sweep or a finished run")


if __name__ == "__main__":
    main(sys.argv[1:])
