from __future__ import annotations

import importlib.util
import json
import struct

import pytest
from tensorboardX.proto.event_pb2 import Event

from fedss_jax.boards import check_wandb
from fedss_jax.metrics import Progress, Workdir
from fedss_jax.report import curves, summary
from fedss_jax.types import UserError

CONFIG = {"method": "fedss", "eval": {"every": 5}, "faces": ("a", "b")}


def test_files_of_a_run(tmp_path):
    folder = Workdir(tmp_path / "new" / "run", CONFIG)
    folder.write(0, {"eval/map10": 0.1})
    folder.write(1, {"train/loss": 2.0})
    folder.finish({"rounds": 1})
    assert json.loads((folder.path / "config.json").read_text())["eval"] == {"every": 5}
    lines = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"round": 0, "eval/map10": 0.1}, {"round": 1, "train/loss": 2.0}]
    assert json.loads((folder.path / "summary.json").read_text()) == {"rounds": 1}
    (events,) = folder.path.glob("events.out.tfevents.*")
    assert {p.name for p in folder.path.iterdir()} == {"config.json", "metrics.jsonl", "summary.json", events.name}


def read_events(path):
    """TensorBoard's records: a length and its checksum, the event, and its checksum."""
    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        found.append(Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return found


def test_tensorboard_gets_the_same_numbers(tmp_path):
    Workdir(tmp_path, CONFIG).finish({})
    folder = Workdir(tmp_path, CONFIG)  # begins anew: the events of the first are gone
    folder.write(0, {"eval/map10": 0.25})
    folder.write(7, {"train/loss": 2.0, "eval/map10": 0.5})
    folder.finish({})
    (events,) = tmp_path.glob("events.out.tfevents.*")
    told = [
        (event.step, value.tag, value.simple_value) for event in read_events(events) for value in event.summary.value
    ]
    assert told == [(0, "eval/map10", 0.25), (7, "train/loss", 2.0), (7, "eval/map10", 0.5)]


def test_without_the_package_weights_and_biases_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # as if it were not installed
    check_wandb("")
    with pytest.raises(UserError, match="wandb is 'mine', but the package is not installed; pip install wandb"):
        check_wandb("mine")


def test_the_same_config_starts_anew_and_another_is_refused(tmp_path):
    Workdir(tmp_path, CONFIG).finish({})
    Workdir(tmp_path, CONFIG).finish({"second": True})
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    other = CONFIG | {"method": "negonly", "eval": {"every": 7}}
    with pytest.raises(UserError, match=r'eval.every \(5 there, 7 here\), method \("fedss" there, "negonly" here\)'):
        Workdir(tmp_path, other)
    assert before == {p.name: p.read_bytes() for p in tmp_path.iterdir()}


def test_an_unwritable_workdir_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"workdir .*file/run cannot be written .*--workdir"):
        Workdir(tmp_path / "file" / "run", CONFIG)
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text("not json")
    with pytest.raises(UserError, match="cannot be read"):
        Workdir(tmp_path / "odd", CONFIG)


def test_plain_lines_where_there_is_no_terminal(capsys):
    progress = Progress(10, 5)
    for round in range(11):
        progress.update(round, {"train/loss": 1.0 + round} | ({"eval/map10": 0.25} if round % 5 == 0 else {}))
    progress.close()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and lines[1] == "round  5/10  loss 6.000  MAP@10 0.2500"


def test_a_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    progress = Progress(4, 2)
    for round in (0, 2, 4):
        progress.update(round, {"train/loss": 1.5, "eval/top1": 0.5})
    progress.close()
    shown = capsys.readouterr().out
    assert "4/4" in shown and "loss=1.500" in shown and "top-1=0.5000" in shown


def test_the_curves_are_a_picture(tmp_path):
    folder = Workdir(tmp_path, CONFIG)
    for round in range(4):
        folder.write(round, {"train/loss": 3.0 - round, "eval/map10": 0.1 * round, "eval/map10_ceiling": 0.8})
    path = curves.draw(tmp_path, "a run")
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000


def test_the_table_puts_start_beside_end():
    final = {"eval/map10": 0.42, "eval/map10_ceiling": 0.83, "comm/bytes_down": 3e5, "comm/classes": 40.0}
    told = {
        "start": {"eval/map10": 0.2, "eval/map10_ceiling": 0.83},
        "final": final,
        "encoder_parameters": 86_272,
        "num_classes": 2000,
        "rounds_per_second": 2.0,
        "seconds": 100.0,
        "seconds_training": 90.0,
        "seconds_compiling": 5.0,
        "residency": "disk",
        "seconds_waiting_for_data": 0.5,
    }
    assert "MAP@10         0.2000   0.4200   (no model can pass 0.8300" in summary.table(told)
    costs = summary.costs(told, 64)
    assert "40 of 2,000 classes a round: 0.30 MB, and sent as much back (the whole model: 0.86 MB)" in costs
    assert "90 s training (0.5 s of it waiting for data)" in costs
    assert "waiting" not in summary.costs(told | {"residency": "device"}, 64)
