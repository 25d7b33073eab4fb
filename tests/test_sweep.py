from __future__ import annotations

import json
import sys

import pytest

from configs import glyphs
from fedss_jax import sweep
from fedss_jax.command_line import load_config_file
from fedss_jax.sweep import Cell
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
seed = int(settings["seed"])
summary = {"seed": seed, "start": {"eval/map10": seed}, "final": {"eval/map10": score, "comm/classes": 40.0}}
(folder / "config.json").write_text('{"version": 1}')
(folder / "summary.json").write_text(json.dumps(summary))
"""


def cell(method, seed, version=1):
    return Cell({"method": method, "seed": seed}, {"version": version})


CELLS = [cell(method, seed) for method in ("abc", "de") for seed in (0, 1)]
COMMAND = [sys.executable, "-c", PROGRAM]


def test_cells_come_from_the_config_file(tmp_path):
    file = tmp_path / "config.py"
    settings = "{'method': 'posonly', 'seed': seed, 'eval.every': 9}"
    body = f"def get_config(): pass\ndef sweep(add):\n    for seed in (3, 4): add(**{settings})"
    file.write_text(body)
    first, second = sweep.list_cells(load_config_file(str(file)), glyphs.get_config())
    assert first.name == "method=posonly,seed=3,eval.every=9" and first.row == second.row == "posonly eval.every=9"
    assert second.config["seed"] == 4 and second.config["eval"]["every"] == 9
    assert second.config["client"]["learning_rate"] == glyphs.TUNED["posonly"]["learning_rate"]
    file.write_text(body.replace("'posonly'", "'nothing'"))
    with pytest.raises(UserError, match="method is 'nothing'"):
        sweep.list_cells(load_config_file(str(file)), glyphs.get_config())
    file.write_text("def get_config(): pass")
    with pytest.raises(UserError, match=r"has no sweep\(add\)"):
        sweep.list_cells(load_config_file(str(file)), glyphs.get_config())


def test_config_files_that_cannot_be_read_are_refused(tmp_path):
    file = tmp_path / "config.py"
    for text, message in (("# Title\nnot a python", "line 2"), ("x = 1", r"has no get_config\(\)")):
        file.write_text(text)
        with pytest.raises(UserError, match=message):
            load_config_file(str(file))
    with pytest.raises(UserError, match="does not exist"):
        load_config_file(str(tmp_path / "none.py"))


def test_a_sweep_prints_and_keeps_its_table_and_fails_with_its_cells(tmp_path, capsys):
    with pytest.raises(UserError, match=r"1 of 2 runs failed: method=bad,seed=0: error: no such method"):
        sweep.sweep(COMMAND, [cell("abc", 0), cell("bad", 0)], tmp_path / "runs", 1)
    table = (tmp_path / "runs" / "table.md").read_text()
    assert "| abc | 3.000 |" in table and table in capsys.readouterr().out


def test_results_of_another_config_are_refused(tmp_path):
    sweep.sweep(COMMAND, CELLS, tmp_path, 1)
    sweep.sweep(COMMAND, CELLS, tmp_path, 1)
    with pytest.raises(UserError, match=r"another config: version \(1 there, 2 here\)"):
        sweep.sweep(COMMAND, [cell("abc", 0, version=2)], tmp_path, 1)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be made"):
        sweep.sweep(COMMAND, CELLS, tmp_path / "file" / "runs", 1)


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_table_is_mean_and_deviation_over_seeds(tmp_path, jobs):
    assert sweep.run(COMMAND, CELLS, tmp_path, jobs) == {}
    lines = sweep.table(CELLS, tmp_path).splitlines()
    assert lines[0] == "| | MAP@10 | classes a client receives | seeds |"
    assert lines[2:] == [
        "| untrained | 0.500 ± 0.707 | | 2 |",
        "| abc | 3.050 ± 0.071 | 40 | 2 |",
        "| de | 2.050 ± 0.071 | 40 | 2 |",
    ]


def test_what_is_done_is_not_run_again(tmp_path):
    sweep.run(COMMAND, CELLS[:2], tmp_path, 1)
    sweep.run(COMMAND, CELLS, tmp_path, 1)
    assert [(tmp_path / cell.name / "count").read_text() for cell in CELLS] == ["x"] * 4


def test_failures_are_named_and_do_not_stop_the_others(tmp_path):
    cells = [cell("bad", 0), *CELLS]
    assert sweep.run(COMMAND, cells, tmp_path, 2) == {"method=bad,seed=0": "error: no such method"}
    assert "bad" not in sweep.table(cells, tmp_path)
    summary = tmp_path / CELLS[0].name / "summary.json"
    assert json.loads(summary.read_text())["final"]["eval/map10"] == 3
