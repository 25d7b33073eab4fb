from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from configs import glyphs
from fedss_jax import sweep
from fedss_jax.command_line import load_config_file
from fedss_jax.report import __main__ as report
from fedss_jax.sweep import Cell
from fedss_jax.types import UserError

ROOT = Path(__file__).parent.parent

# Stands for launch.py: does what a cell's settings say, quickly.
PROGRAM = """
import json, pathlib, sys, time
settings = dict(word.removeprefix("--config.").split("=") for word in sys.argv[1:-1])
folder = pathlib.Path(sys.argv[-1].partition("=")[2])
with (folder / "starts").open("a") as starts:
    starts.write("x")
time.sleep(float(settings.get("sleep", 0)))
if settings["method"] == "bad":
    sys.exit("error: no such | method")
score = 0.1 * int(settings["seed"]) + len(settings["method"])
seed = int(settings["seed"])
final = {"eval/map10": score}
summary = {"method": settings["method"], "seed": seed, "start": {"eval/map10": seed}, "final": final}
summary |= {"communication": {"comm/classes": 40.0}}
summary |= {"dataset": "made up", "task": "retrieval", "num_classes": 200, "dim": 4, "encoder_parameters": 1000}
(folder / "config.json").write_text('{"version": 1}')
(folder / "metrics.jsonl").write_text(json.dumps({"round": 1, **final}))
(folder / "report.html").write_text("a page")
(folder / "summary.json").write_text(json.dumps(summary))
"""


def cell(method, seed, version=1, **settings):
    return Cell({"method": method, **settings, "seed": seed}, {"version": version})


CELLS = [cell(method, seed) for method in ("abc", "fullsoftmax") for seed in (0, 1)]
COMMAND = [sys.executable, "-c", PROGRAM]


def starts(folder, cells):
    return [len((folder / cell.name / "starts").read_text()) for cell in cells]


def test_cells_come_from_the_config_file(tmp_path):
    file = tmp_path / "config.py"
    settings = "{'method': 'posonly', 'seed': seed, 'eval.every': 9}"
    body = f"def get_config(): pass\ndef sweep(add):\n    for seed in (3, 4): add(**{settings})"
    file.write_text(body)
    first, second = sweep.list_cells(load_config_file(str(file)), glyphs.get_config())
    assert first.name == "method=posonly,seed=3,eval.every=9" and first.row == second.row == "PosOnly, eval.every=9"
    assert second.config["seed"] == 4 and second.config["eval"]["every"] == 9
    assert second.config["client"]["learning_rate"] == glyphs.TUNED["posonly"]["learning_rate"]
    for wrong, message in (
        (body.replace("'posonly'", "'nothing'"), "method is 'nothing'"),
        (body.replace("(3, 4)", "(3, 3)"), "adds method=posonly,seed=3,eval.every=9 2 times; add it once"),
        (body.replace("(3, 4)", "()"), "adds no cell"),
        ("def get_config(): pass", r"has no sweep\(add\)"),
    ):
        file.write_text(wrong)
        with pytest.raises(UserError, match=message):
            sweep.list_cells(load_config_file(str(file)), glyphs.get_config())


OTHERS = {"glyphs_tuning": 55, "glyphs_faults": 3}  # sweeps of questions that the paper has no table for
SWEEPS = [path for path in sorted(ROOT.glob("configs/sweeps/*.py")) if path.stem not in {"paper", *OTHERS}]


@pytest.mark.parametrize("name", OTHERS)
def test_every_other_sweep_has_its_cells(name):
    module = importlib.import_module(f"configs.sweeps.{name}")
    assert len(sweep.list_cells(module, module.get_config())) == OTHERS[name]


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
@pytest.mark.parametrize("variant", [[], ["smoke"]], ids=["whole", "smoke"])
def test_every_sweep_of_the_paper_has_its_cells(path, variant):
    module = importlib.import_module(f"configs.sweeps.{path.stem}")
    cells = sweep.list_cells(module, module.get_config(*variant))
    methods = {cell.config["method"] for cell in cells}
    seeds = {cell.config["seed"] for cell in cells}
    if "overfitting" in path.stem:
        assert methods == {"fedss", "fullsoftmax", "centralized"} and len(cells) == 9
    else:
        assert len(methods) == 6 and len(cells) == 3 * (3 * 5 + 4) and seeds == {0, 1, 2}
        assert sum(cell.config["extra_negatives"] for cell in cells) == 3 * 5


def test_config_files_that_cannot_be_read_are_refused(tmp_path):
    file = tmp_path / "config.py"
    for text, message in (("# Title\nnot a python", "line 2"), ("x = 1", r"has no get_config\(\)")):
        file.write_text(text)
        with pytest.raises(UserError, match=message):
            load_config_file(str(file))
    with pytest.raises(UserError, match="does not exist"):
        load_config_file(str(tmp_path / "none.py"))


def test_a_sweep_prints_and_keeps_its_tables_and_fails_with_its_cells(tmp_path, capsys):
    cells = [*CELLS, cell("bad", 0)]
    with pytest.raises(UserError, match=r"1 of 5 runs failed: method=bad,seed=0: error: no such \| method"):
        sweep.sweep(COMMAND, cells, tmp_path / "runs", 2)
    table = (tmp_path / "runs" / "table.md").read_text()
    assert table in capsys.readouterr().out
    assert "| FullSoftmax | 11.050 ± 0.071 (best 11.100) | 40 | 2 |" in table
    assert "| bad | – |  | 0 | method=bad,seed=0: error: no such \\| method |" in table
    assert all((tmp_path / "runs" / f"table.{kind}").stat().st_size > 50 for kind in ("csv", "tex"))
    # What failed is tried again, what is done is not.
    with pytest.raises(UserError):
        sweep.sweep(COMMAND, cells, tmp_path / "runs", 1)
    assert starts(tmp_path / "runs", cells) == [1, 1, 1, 1, 2]


def test_a_sweep_of_which_nothing_ran_still_says_why(tmp_path):
    with pytest.raises(UserError, match="1 of 1 runs failed"):
        sweep.sweep(COMMAND, [cell("bad", 0)], tmp_path, 1)
    assert "error: no such" in (tmp_path / "table.md").read_text()
    assert "error: no such | method" in (tmp_path / "report.html").read_text()


def test_results_of_another_config_are_refused(tmp_path):
    sweep.sweep(COMMAND, CELLS, tmp_path, 1)
    sweep.sweep(COMMAND, CELLS, tmp_path, 1)
    with pytest.raises(UserError, match=r"another config: version \(1 there, 2 here\)"):
        sweep.sweep(COMMAND, [cell("abc", 0, version=2)], tmp_path, 1)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        sweep.sweep(COMMAND, CELLS, tmp_path / "file" / "runs", 1)


def test_what_is_done_is_not_run_again(tmp_path):
    sweep.run(COMMAND, CELLS[:2], tmp_path, 1)
    sweep.run(COMMAND, CELLS, tmp_path, 1)
    assert starts(tmp_path, CELLS) == [1] * 4


def test_failures_are_named_and_do_not_stop_the_others(tmp_path):
    cells = [cell("bad", 0), *CELLS]
    assert sweep.run(COMMAND, cells, tmp_path, 2) == {"method=bad,seed=0": "error: no such | method"}
    summary = tmp_path / CELLS[0].name / "summary.json"
    assert json.loads(summary.read_text())["final"]["eval/map10"] == 3


def leave_rounds(folder, rounds):
    """As a run does that is under way."""
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("{}\n" * (1 + rounds))  # the start, and a line a round


def test_progress_is_in_rounds_with_the_time_that_is_left(tmp_path, capsys, monkeypatch):
    cells = [Cell({"method": name, "seed": 0}, {"rounds": 100}) for name in ("a", "b", "c", "d", "e")]
    a, b, c, _, e = (tmp_path / cell.name for cell in cells)
    for folder in (a, b, e):
        folder.mkdir()
    (a / "summary.json").write_text("{}")
    leave_rounds(c, 80)  # before it was stopped
    clock = iter([0.0, 10.0])
    monkeypatch.setattr(sweep.time, "monotonic", lambda: next(clock))
    progress = sweep.Overall(cells, tmp_path)
    (b / "summary.json").write_text("{}")
    leave_rounds(c, 95)
    leave_rounds(e, 10)
    progress.update([cells[0], cells[1]])
    monkeypatch.setattr(sweep.time, "monotonic", lambda: 12.5)
    progress.update([cells[4]])  # which has failed after ten
    # 125 rounds in 10 seconds, and 195 to go, of which 90 will not come
    assert capsys.readouterr().out.splitlines() == [
        "1 of 5 runs are done already",
        "2 of 5 runs are over (00:10, about 00:15 left): method=b,seed=0",
        "3 of 5 runs are over (00:12, about 00:10 left): method=e,seed=0",
    ]


def test_why_a_run_failed_is_told_in_a_line():
    assert sweep.why_it_failed(1, "round 3\nerror: lower it\n") == "error: lower it"
    assert sweep.why_it_failed(3, "") == "exit code 3; the last it said: nothing"
    assert sweep.why_it_failed(1, "round 3\nKeyError: 3") == "exit code 1; the last it said: KeyError: 3"
    assert sweep.why_it_failed(-9, "round 3") == "killed by SIGKILL, as is done where memory is short"
    assert sweep.why_it_failed(-15, "") == "killed by SIGTERM"


def test_seeds_alone_have_a_row_too():
    assert Cell({"seed": 3}, {"method": "fedss"}).row == "FedSS"


KILLED = [cell("abc", seed, sleep=0.7) for seed in range(5)]
SWEEPING = "import sys; sys.path[:0] = sys.argv[2:]; import test_sweep as t; from pathlib import Path;"
SWEEPING += "t.sweep.sweep(t.COMMAND, t.KILLED, Path(sys.argv[1]), 2)"


@pytest.mark.parametrize("runs_die_too", [False, True], ids=["runs-go-on", "runs-die-too"])
def test_a_killed_sweep_goes_on_where_it_was(tmp_path, runs_die_too):
    """Only what was not finished runs again, nothing runs twice at a time, and the table is that of a whole sweep."""
    arguments = [sys.executable, "-c", SWEEPING, str(tmp_path / "killed"), str(ROOT), str(ROOT / "tests")]
    process = subprocess.Popen(arguments, start_new_session=True, stdout=subprocess.DEVNULL)
    summaries = [tmp_path / "killed" / cell.name / "summary.json" for cell in KILLED]
    deadline = time.monotonic() + 120
    while not any(path.exists() for path in summaries) and time.monotonic() < deadline:
        time.sleep(0.02)
    done = [path.exists() for path in summaries]
    kill = os.killpg if runs_die_too else os.kill
    kill(process.pid, signal.SIGKILL)
    process.wait()
    assert any(done) and not all(done)
    kept = {path: path.stat().st_mtime_ns for path, was_done in zip(summaries, done) if was_done}
    assert not (tmp_path / "killed" / "table.md").exists()
    report.main([str(tmp_path / "killed")])  # which shows what there is so far
    seeds = (tmp_path / "killed" / "table.md").read_text().splitlines()[-1].split("|")[-2]
    assert sum(done) <= int(seeds) < len(KILLED)

    sweep.sweep(COMMAND, KILLED, tmp_path / "killed", 2)
    assert all(path.stat().st_mtime_ns == when for path, when in kept.items())
    started = starts(tmp_path / "killed", KILLED)
    assert all(count == 1 for count, was_done in zip(started, done) if was_done)
    assert max(started) <= (2 if runs_die_too else 1)
    sweep.sweep(COMMAND, KILLED, tmp_path / "whole", 5)
    for name in ("table.md", "table.csv", "table.tex"):
        assert (tmp_path / "killed" / name).read_text() == (tmp_path / "whole" / name).read_text()
