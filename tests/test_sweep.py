from __future__ import annotations

import json
import sys

import pytest

from fedss_jax import sweep
from fedss_jax.command_line import load_config_file
from fedss_jax.types import UserError

# Stands for launch.py: does what a cell's settings say, quickly.
PROGRAM = """
import json, pathlib, sys
settings = dict(word.removeprefix("--config.").split("=") for word in sys.argv[1:-1])
folder = pathlib.Path(sys.argv[-1].partition("=")[2])
if settings["method"] == "bad":
    sys.exit("error: no such method")
score = 0.1 * int(settings["seed"]) + len(settings["method"])
(folder / "count").write_text((folder / "count").read_text() + "x" if (folder / "count").exists() else "x")
summary = {"start": {"eval/map10": 0.0}, "final": {"eval/map10": score, "comm/classes": 40.0}}
(folder / "summary.json").write_text(json.dumps(summary))
"""
CELLS = [{"method": method, "seed": seed} for method in ("abc", "de") for seed in (0, 1)]
COMMAND = [sys.executable, "-c", PROGRAM]


def test_cells_come_from_the_config_file(tmp_path):
    file = tmp_path / "config.py"
    file.write_text("def sweep(add):\n    for seed in (0, 1):\n        add(method='fedss', seed=seed)\n")
    expected = [{"method": "fedss", "seed": 0}, {"method": "fedss", "seed": 1}]
    assert sweep.list_cells(load_config_file(str(file))) == expected
    file.write_text("")
    with pytest.raises(UserError, match=r"has no sweep\(add\)"):
        sweep.list_cells(load_config_file(str(file)))
    with pytest.raises(UserError, match="does not exist"):
        load_config_file(str(tmp_path / "none.py"))


def test_a_sweep_prints_and_keeps_its_table_and_fails_with_its_cells(tmp_path, capsys):
    file = tmp_path / "config.py"
    file.write_text("def sweep(add):\n    for method in ('abc', 'bad'):\n        add(method=method, seed=0)\n")
    with pytest.raises(UserError, match=r"1 of 2 runs failed: method=bad,seed=0: error: no such method"):
        sweep.sweep(load_config_file(str(file)), COMMAND, tmp_path / "runs", 1)
    table = (tmp_path / "runs" / "table.md").read_text()
    assert "| abc | 3.000 |" in table and table in capsys.readouterr().out


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_table_is_mean_and_deviation_over_seeds(tmp_path, jobs):
    assert sweep.run(COMMAND, CELLS, tmp_path, jobs) == {}
    lines = sweep.table(CELLS, tmp_path).splitlines()
    assert lines[0] == "| | MAP@10 | classes a client receives | seeds |"
    assert lines[2:] == [
        "| untrained | 0.000 ± 0.000 | | |",
        "| abc | 3.050 ± 0.071 | 40 | 2 |",
        "| de | 2.050 ± 0.071 | 40 | 2 |",
    ]


def test_what_is_done_is_not_run_again(tmp_path):
    sweep.run(COMMAND, CELLS[:2], tmp_path, 1)
    sweep.run(COMMAND, CELLS, tmp_path, 1)
    assert [(tmp_path / sweep.name(cell) / "count").read_text() for cell in CELLS] == ["x"] * 4


def test_failures_are_named_and_do_not_stop_the_others(tmp_path):
    cells = [{"method": "bad", "seed": 0}, *CELLS]
    assert sweep.run(COMMAND, cells, tmp_path, 2) == {"method=bad,seed=0": "error: no such method"}
    assert "bad" not in sweep.table(cells, tmp_path)
    summary = tmp_path / sweep.name(CELLS[0]) / "summary.json"
    assert json.loads(summary.read_text())["final"]["eval/map10"] == 3
