from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import struct

import numpy as np
import pytest
from disks import file_limit
from tensorboardX.proto.event_pb2 import Event, SessionLog

from fedss_jax.boards import TensorBoard, check_wandb
from fedss_jax.metrics import Progress, Workdir, finished_run, writable
from fedss_jax.report import curves, summary
from fedss_jax.types import UserError

CONFIG = {"method": "fedss", "eval": {"every": 5}, "faces": ("a", "b")}


@contextlib.contextmanager
def begun(path, done=0):
    with Workdir(path, CONFIG) as folder:
        folder.begin(done)
        yield folder


def told(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def test_files_of_a_run(tmp_path):
    with begun(tmp_path / "new" / "run") as folder:
        folder.write(0, {"eval/map10": 0.1})
        folder.write(1, {"train/loss": 2.0})
        folder.finish({"rounds": 1})
    assert json.loads((folder.path / "config.json").read_text())["eval"] == {"every": 5}
    assert told(folder.path) == [{"round": 0, "eval/map10": 0.1}, {"round": 1, "train/loss": 2.0}]
    assert json.loads((folder.path / "summary.json").read_text()) == {"rounds": 1}
    (events,) = folder.path.glob("events.out.tfevents.*")
    files = {"config.json", "metrics.jsonl", "summary.json", ".lock", events.name}
    assert {p.name for p in folder.path.iterdir()} == files


def test_after_a_resume_every_round_is_there_once(tmp_path):
    with begun(tmp_path) as folder:
        for round in range(6):
            folder.write(round, {"train/loss": float(round)})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 6, "tra')  # by who was killed
    with begun(tmp_path, done=3) as folder:
        assert [line["round"] for line in told(tmp_path)] == [0, 1, 2, 3]
        folder.write(4, {"train/loss": 9.0})
        folder.finish({})
    assert [line["round"] for line in told(tmp_path)] == [0, 1, 2, 3, 4]
    assert told(tmp_path)[4]["train/loss"] == 9.0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"round": 0}\n{"round": 1}\n', "ends before round 2, but the checkpoint is of round 3"),
        ('{"round": 0}\n{"round": 2}\n{"round": 3}\n{"round": 4}\n', "line 2 of .* is not that of round 1"),
        ('{"round": 0}\nround one\n{"round": 2}\n{"round": 3}\n', "line 2 of"),
    ],
)
def test_metrics_that_lack_a_round_are_not_gone_on_with(tmp_path, content, message):
    with begun(tmp_path):
        pass
    (tmp_path / "metrics.jsonl").write_text(content)
    with Workdir(tmp_path, CONFIG) as folder, pytest.raises(UserError, match=message):
        folder.begin(3)
    assert (tmp_path / "metrics.jsonl").read_text() == content


def test_numbers_wait_while_the_disk_is_full(tmp_path, capsys):
    """A limit on the size of files stands for the full disk: the write ends in its middle, with an error."""
    with begun(tmp_path) as folder:
        folder.write(0, {"train/loss": 0.0})
        size = (tmp_path / "metrics.jsonl").stat().st_size
        with file_limit(size + 10):
            for round in (1, 2):
                folder.write(round, {"train/loss": float(round)})
            with pytest.raises(OSError, match="File too large"):
                folder.sync()
        assert capsys.readouterr().out.count("cannot be written (File too large); its numbers wait") == 1
        folder.write(3, {"train/loss": 3.0})
        assert [(line["round"], line["train/loss"]) for line in told(tmp_path)] == [(i, float(i)) for i in range(4)]
        folder.finish({})
    (events,) = tmp_path.glob("events.out.tfevents.*")
    assert [event.step for event in read_events(events) if event.summary.value] == [0, 1, 2, 3]


def test_nothing_is_lost_where_output_cannot_be_written(tmp_path, monkeypatch):
    """The disk that is full may be the one that the output goes to."""
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        with begun(tmp_path) as folder, file_limit(10):
            folder.write(0, {"train/loss": 0.0})
            Progress(1, 1).update(1, {})
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()


def test_numpys_word_for_a_full_disk_has_a_remedy(tmp_path):
    message = r"cannot be written \(.*requested and.*\); make room and start again"
    with pytest.raises(UserError, match=message), writable(tmp_path), file_limit(1000):
        np.save(tmp_path / "large.npy", np.zeros(10_000))


def test_a_run_that_is_stopped_leaves_all_its_events(tmp_path):
    with begun(tmp_path) as folder:
        for round in range(9):
            folder.write(round, {"train/loss": 1.0})
    (events,) = tmp_path.glob("events.out.tfevents.*")
    assert [event.step for event in read_events(events) if event.summary.value] == list(range(9))


def read_events(path):
    """TensorBoard's records: a length and its checksum, the event, and its checksum."""
    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        found.append(Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return found


def test_tensorboard_gets_the_same_numbers(tmp_path):
    with begun(tmp_path) as folder:
        folder.finish({})
    with begun(tmp_path) as folder:  # begins anew: the events of the first are gone
        folder.write(0, {"eval/map10": 0.25})
        folder.write(7, {"train/loss": 2.0, "eval/map10": 0.5})
        folder.finish({})
    (events,) = tmp_path.glob("events.out.tfevents.*")
    told = [
        (event.step, value.tag, value.simple_value) for event in read_events(events) for value in event.summary.value
    ]
    assert told == [(0, "eval/map10", 0.25), (7, "train/loss", 2.0), (7, "eval/map10", 0.5)]


def test_tensorboard_hears_from_which_round_a_run_goes_on(tmp_path):
    TensorBoard(tmp_path, 7).close()
    (events,) = tmp_path.glob("events.out.tfevents.*")
    start = read_events(events)[1]
    assert start.session_log.status == SessionLog.START and start.step == 8


def test_without_the_package_weights_and_biases_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # as if it were not installed
    check_wandb("")
    with pytest.raises(UserError, match="wandb is 'mine', but the package is not installed; pip install wandb"):
        check_wandb("mine")


def test_another_config_is_refused_but_for_what_may_change(tmp_path):
    with begun(tmp_path) as folder:
        folder.finish({"rounds": 1})
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    other = CONFIG | {"method": "negonly", "eval": {"every": 7}}
    with pytest.raises(UserError, match=r'eval.every \(5 there, 7 here\), method \("fedss" there, "negonly" here\)'):
        Workdir(tmp_path, other)
    with pytest.raises(UserError, match=r'config: method \("fedss" there, "negonly" here\); choose'):
        Workdir(tmp_path, other, may_change=("eval",))
    assert before == {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with Workdir(tmp_path, CONFIG | {"eval": {"every": 7}}, may_change=("eval",)) as folder:
        folder.begin()
    assert json.loads((tmp_path / "config.json").read_text())["eval"] == {"every": 7}


def test_a_finished_run_is_recognised(tmp_path):
    config = CONFIG | {"rounds": 4}
    assert finished_run(tmp_path, config, ()) is None
    with Workdir(tmp_path, config) as folder:
        folder.begin()
        assert finished_run(tmp_path / "other", config, ()) is None
        with pytest.raises(UserError, match=f"is in use by process {os.getpid()} on"):
            finished_run(tmp_path, config, ())
        folder.finish({"rounds": 4})
    assert finished_run(tmp_path, config, ()) == {"rounds": 4}
    assert finished_run(tmp_path, config | {"rounds": 5}, ("rounds",)) is None
    with pytest.raises(UserError, match="rounds is 3, but the run in .* has done 4"):
        finished_run(tmp_path, config | {"rounds": 3}, ("rounds",))


def test_an_unwritable_workdir_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"workdir .*file/run cannot be written .*--workdir"):
        Workdir(tmp_path / "file" / "run", CONFIG)
    (tmp_path / "odd").mkdir()
    for odd in ("not json", "[1]"):
        (tmp_path / "odd" / "config.json").write_text(odd)
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
    with begun(tmp_path) as folder:
        for round in range(4):
            folder.write(round, {"train/loss": 3.0 - round, "eval/map10": 0.1 * round, "eval/map10_ceiling": 0.8})
    path = curves.draw(tmp_path, "a run")
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000


def test_the_table_puts_start_beside_end():
    sent = {"comm/bytes_down": 3e5, "comm/bytes_up": 3e5, "comm/classes": 40.0}
    told = {
        "start": {"eval/map10": 0.2, "eval/map10_ceiling": 0.83},
        "final": {"eval/map10": 0.42, "eval/map10_ceiling": 0.83},
        "communication": sent,
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
    assert "(not all did)" in summary.costs(told | {"communication": sent | {"comm/bytes_up": 2e5}}, 64)
    assert "client" not in summary.costs(told | {"communication": {}}, 64)
