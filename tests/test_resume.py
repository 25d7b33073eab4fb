"""Whatever happens to a run, the same command goes on with it, and the end has the same bits."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from starts import QUICKLY, Starter

from configs import arrays
from fedss_jax import command_line, export
from fedss_jax.checkpoint import METADATA
from fedss_jax.interrupt import Interruption
from fedss_jax.metrics import Workdir
from fedss_jax.train import train
from fedss_jax.types import UserError

pytestmark = pytest.mark.usefixtures("one_device")

ROUNDS, EVERY, KILLS = 240, 3, 20
SECONDS = 300  # for what ought to come soon; only a hang takes so long


def write_features(path: Path) -> Path:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(23), 12)
    features = rng.normal(size=(23, 8))[labels] + rng.normal(size=(len(labels), 8))
    np.savez(path, features=features.astype(np.float32), labels=labels, clients=np.arange(len(labels)) // 23)
    return path


class Starts:
    """Processes of launch.py on one small federation, one after the other."""

    def __init__(self, folder: Path):
        self.folder, self.count = folder, 0
        self._settings = [
            "--config=configs/arrays.py",
            f"--config.data.train={write_features(folder / 'train.npz')}",
            f"--config.rounds={ROUNDS}",
            "--config.eval.every=60",
            f"--config.checkpoint.every={EVERY}",
        ]
        self._starter = Starter(
            QUICKLY,
            JAX_COMPILATION_CACHE_DIR=str(folder / "compiled"),
            JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
            JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
        )

    def start(self, workdir: Path, *settings: str, devices: int = 1) -> int:
        """The process's number."""
        self.count += 1
        self.log = self.folder / f"log-{self.count}.txt"
        return self._starter.start(*self._settings, f"--workdir={workdir}", *settings, out=self.log, devices=devices)

    def wait(self) -> int:
        """How it ended."""
        return self._starter.wait()

    def wait_for(self, happens) -> None:
        deadline = time.monotonic() + SECONDS
        while not happens():
            assert time.monotonic() < deadline, self.printed()
            time.sleep(0.001)

    def printed(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def trains(self) -> bool:
        return re.search(r"^(round +0/|going on)", self.printed(), re.MULTILINE) is not None

    def close(self) -> None:
        self._starter.close()


@pytest.fixture(scope="module")
def starts(tmp_path_factory):
    made = Starts(tmp_path_factory.mktemp("starts"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def whole(starts) -> Path:
    """A run that nobody interrupted."""
    starts.start(starts.folder / "whole")
    assert starts.wait() == 0, starts.printed()
    return starts.folder / "whole"


def summary(workdir: Path) -> dict:
    return json.loads((workdir / "summary.json").read_text())


def assert_same_run(workdir: Path, whole: Path) -> None:
    for name in ("metrics.jsonl", "encoder.safetensors", "class_matrix.npy"):
        assert (workdir / name).read_bytes() == (whole / name).read_bytes(), name
    mine, other = summary(workdir), summary(whole)
    for name in ("state_digest", "start", "final", "rounds", "real_share_of_slots", "communication"):
        assert mine[name] == other[name], name
    assert mine["seconds"] > mine["seconds_training"] > 0


def unfinished(workdir: Path) -> list[Path]:
    """What a save looks like before it is whole."""
    return list((workdir / "checkpoints").glob("*orbax-checkpoint-tmp*"))


def newest(workdir: Path) -> int:
    """The last round that is saved."""
    names = os.listdir(workdir / "checkpoints") if (workdir / "checkpoints").exists() else []
    return max((int(name) for name in names if name.isdigit()), default=0)


def test_killed_at_twenty_moments_it_ends_with_the_same_bits(starts, whole):
    """Some rounds after each start; every second kill while a checkpoint is being written, the others whenever."""
    chance = random.Random(5)
    workdir, killed_while_writing, saved = starts.folder / "killed", 0, []
    for kill in range(KILLS):
        process = starts.start(workdir)
        target = newest(workdir) + EVERY * chance.choice([0, 1, 2, 3])
        starts.wait_for(lambda: starts.trains() and newest(workdir) >= target)  # noqa: B023
        if kill % 2:
            starts.wait_for(lambda: unfinished(workdir))
            time.sleep(chance.uniform(0.0, 0.02))
        else:
            time.sleep(chance.uniform(0.0, 0.1))
        os.kill(process, signal.SIGKILL)
        assert starts.wait() == -signal.SIGKILL, starts.printed()
        killed_while_writing += bool(unfinished(workdir))
        saved.append(newest(workdir))
    starts.start(workdir)
    assert starts.wait() == 0, starts.printed()
    assert_same_run(workdir, whole)
    assert saved == sorted(saved) and len(set(saved)) > KILLS / 3 and killed_while_writing >= 3, (
        saved,
        killed_while_writing,
    )


def test_signals_stop_it_where_it_can_go_on(starts, whole):
    """To the same bits on as many devices, and to rounding on others."""
    same, other = starts.folder / "stopped", starts.folder / "on-other-devices"
    rounds = []
    for workdir, devices in ((same, 1), (other, 2)):
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            process = starts.start(workdir, devices=devices)
            starts.wait_for(starts.trains)
            os.kill(process, number)
            assert starts.wait() == code, starts.printed()
            last_words = rf"^stopped after round (\d+) of {ROUNDS}; saved up to round \1\. To go on:\npython (.*)$"
            told = re.search(last_words, starts.printed(), re.M)
            assert told and f"--workdir={workdir}" in told[2] and "Traceback" not in starts.printed(), starts.printed()
            changed = "up to rounding only (devices: 2 cpu before, 1 cpu now" in starts.printed()
            assert changed == (workdir == other and number == signal.SIGINT and rounds[-1] > 0), starts.printed()
            rounds.append(int(told[1]))
            devices = 1  # the next goes on with another number
        starts.start(workdir)
        assert starts.wait() == 0, starts.printed()
    assert (
        rounds[0] <= rounds[1] < ROUNDS and rounds[2] <= rounds[3] < ROUNDS
    )  # a signal may come before the next is done
    assert_same_run(same, whole)
    lines = [[json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (other, whole)]
    for mine, theirs in zip(*lines, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3, abs=0.05)
    np.testing.assert_allclose(np.load(other / "class_matrix.npy"), np.load(whole / "class_matrix.npy"), atol=2e-3)


def test_two_runs_in_one_folder_are_refused_and_a_dead_owner_holds_nothing(starts, whole):
    workdir = starts.folder / "twice"
    process = starts.start(workdir)
    starts.wait_for(starts.trains)
    with pytest.raises(UserError, match=rf"workdir .* is in use by process {process} on .*; wait until it has ended"):
        train(tiny(starts.folder), str(workdir))
    os.kill(process, signal.SIGKILL)
    starts.wait()
    assert f"process {process}" in (workdir / ".lock").read_text()  # stale
    starts.start(workdir)
    assert starts.wait() == 0, starts.printed()
    assert_same_run(workdir, whole)


def tiny(folder: Path, rounds: int = 6, every: int = 2):
    config = arrays.get_config()
    config.data.train = str(write_features(folder / "train.npz"))
    config.rounds, config.eval.every, config.checkpoint.every = rounds, 4, every
    return config


def test_a_finished_run_goes_on_only_if_rounds_are_raised(tmp_path, capsys):
    short = train(tiny(tmp_path), str(tmp_path / "run"))
    capsys.readouterr()
    assert train(tiny(tmp_path), str(tmp_path / "run")) == json.loads(json.dumps(short))
    assert "is finished; raise rounds to go on" in capsys.readouterr().out
    with pytest.raises(UserError, match="rounds is 5, but the run in .* has done 6; raise it"):
        train(tiny(tmp_path, rounds=5), str(tmp_path / "run"))
    other = tiny(tmp_path)
    other.seed, other.checkpoint.keep, other.eval.every = 3, 5, 9
    with pytest.raises(UserError, match=r"another config: seed \(0 there, 3 here\); choose"):
        train(other, str(tmp_path / "run"))
    longer = train(tiny(tmp_path, rounds=10, every=0), str(tmp_path / "run"))
    assert "going on after round 6 of 10" in capsys.readouterr().out
    at_once = train(tiny(tmp_path, rounds=10), str(tmp_path / "at once"))
    for name in ("state_digest", "start", "final", "real_share_of_slots", "communication"):
        assert longer[name] == at_once[name], name
    rounds = [json.loads(line)["round"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rounds == list(range(11))


def test_without_a_checkpoint_a_finished_run_is_not_thrown_away(tmp_path):
    train(tiny(tmp_path), str(tmp_path / "run"))
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    (tmp_path / "run" / "report.html").unlink()  # as if it had been killed before the page was made
    train(tiny(tmp_path), str(tmp_path / "run"))
    assert (tmp_path / "run" / "report.html").exists()
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(UserError, match="is finished and has no checkpoint to go on from; choose another folder"):
        train(tiny(tmp_path, rounds=10), str(tmp_path / "run"))
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_a_checkpoint_that_could_not_be_read_once_does_not_come_back(tmp_path, monkeypatch):
    """The run has gone back behind it, and so have its metrics."""
    whole = train(tiny(tmp_path), str(tmp_path / "run"))
    (tmp_path / "run" / "summary.json").unlink()
    metadata = tmp_path / "run" / "checkpoints" / "6" / METADATA
    content, begin = metadata.read_text(), Workdir.begin
    metadata.write_text("")

    def interrupted(folder, done=0):
        begin(folder, done)
        raise KeyboardInterrupt

    monkeypatch.setattr(Workdir, "begin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(tiny(tmp_path), str(tmp_path / "run"))
    monkeypatch.setattr(Workdir, "begin", begin)
    (tmp_path / "run" / "checkpoints" / "6.damaged" / METADATA).write_text(content)
    again = train(tiny(tmp_path), str(tmp_path / "run"))
    assert again["state_digest"] == whole["state_digest"] and again["final"] == whole["final"]


def test_a_run_is_exported_as_it_was_at_a_round(tmp_path, capsys):
    config = tiny(tmp_path)
    final = train(config, str(tmp_path / "run"))
    export.export(str(tmp_path / "run"), "last", "")
    with safetensors.safe_open(tmp_path / "run" / "export" / "class_matrix.safetensors", "numpy") as file:
        about = file.metadata()
        np.testing.assert_array_equal(file.get_tensor("class_matrix"), np.load(tmp_path / "run" / "class_matrix.npy"))
    assert about["round"] == "6" and json.loads(about["scores"]) == final["final"]
    assert json.loads(about["config"])["data"]["train"] == config.data.train
    exported, trained = (
        safetensors.numpy.load_file(tmp_path / "run" / folder / "encoder.safetensors") for folder in ("export", "")
    )
    assert exported.keys() == trained.keys()
    for name in exported:
        np.testing.assert_array_equal(exported[name], trained[name])
    export.export(str(tmp_path / "run"), "4", str(tmp_path / "earlier"))
    earlier = safetensors.numpy.load_file(tmp_path / "earlier" / "class_matrix.safetensors")["class_matrix"]
    shorter = train(tiny(tmp_path, rounds=4), str(tmp_path / "shorter"))  # the rows up to date, as this one has them
    np.testing.assert_array_equal(earlier, np.load(tmp_path / "shorter" / "class_matrix.npy"))
    assert shorter["rounds"] == 4
    with pytest.raises(UserError, match="config.json cannot be read .*; name the folder of a run"):
        export.export(str(tmp_path / "nothing"), "last", "")


def test_where_the_rate_depends_on_the_rounds_they_cannot_change(tmp_path):
    config = tiny(tmp_path)
    config.method, config.centralized.cosine = "centralized", True
    (tmp_path / "run").mkdir()
    before = config.copy_and_resolve_references()
    del before.tuned
    (tmp_path / "run" / "config.json").write_text(before.to_json())
    config.rounds = 7
    with pytest.raises(UserError, match=r"another config: rounds \(6 there, 7 here\)"):
        train(config, str(tmp_path / "run"))


@pytest.mark.parametrize("on_error", ["continue", "stop"])
def test_checkpoints_that_cannot_be_written_are_told(tmp_path, capsys, on_error):
    config = tiny(tmp_path)
    config.checkpoint.on_error = on_error
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").write_text("a file where a folder should be")
    trouble = "the checkpoint of round 2 cannot be written to .* (File exists); there is none yet"
    if on_error == "stop":
        with pytest.raises(UserError, match=re.escape(trouble).replace(r"\.\*", ".*")):
            train(config, str(tmp_path / "run"))
        assert not (tmp_path / "run" / "summary.json").exists()
    else:
        assert train(config, str(tmp_path / "run"))["rounds"] == 6
        assert capsys.readouterr().out.count("warning: the checkpoint of round") == 3  # 2, 4 and 6


def test_a_second_signal_is_not_held_back():
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)  # in a shell's background it is ignored
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with Interruption() as interruption:
        assert not interruption.came()
        os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.came() and interruption.exit_code == 143
        assert signal.getsignal(signal.SIGTERM) == signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    assert before == {number: signal.getsignal(number) for number in before}
    signal.signal(signal.SIGINT, ours)


def test_the_command_to_go_on_names_the_folder(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["launch.py", "--config=configs/glyphs.py"])
    assert command_line.to_go_on("runs/a b") == "python launch.py --config=configs/glyphs.py '--workdir=runs/a b'"
    monkeypatch.setattr(sys, "argv", ["launch.py", "--config=configs/glyphs.py", "--workdir", "runs/mine"])
    assert command_line.to_go_on("runs/mine") == "python launch.py --config=configs/glyphs.py --workdir runs/mine"
