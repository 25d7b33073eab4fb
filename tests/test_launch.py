"""The command line as a person uses it: whole runs, and one clear line for every mistake."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from absl import flags
from ml_collections import config_flags
from starts import QUICKLY, Starter

from fedss_jax import command_line
from fedss_jax.types import UserError

ROOT = Path(__file__).parent.parent


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@contextlib.contextmanager
def launching(folder: Path, starter: Starter) -> Iterator[Callable[..., Done]]:
    """A function that runs launch.py with some arguments to its end."""

    def launch(*arguments: str) -> Done:
        out, err = folder / "out", folder / "err"
        for file in (out, err):
            file.write_text("")
        starter.start(*arguments, out=out, err=err)
        return Done(starter.wait(), out.read_text(), err.read_text())

    yield launch
    starter.close()


@pytest.fixture(scope="module")
def launch(tmp_path_factory) -> Iterator[Callable[..., Done]]:
    with launching(tmp_path_factory.mktemp("printed"), Starter(QUICKLY)) as launch:
        yield launch


@pytest.fixture(scope="module")
def launch_as_users(tmp_path_factory) -> Iterator[Callable[..., Done]]:
    """With all that XLA can do, which takes longer to compile."""
    with launching(tmp_path_factory.mktemp("printed"), Starter(JAX_DISABLE_MOST_OPTIMIZATIONS="0")) as launch:
        yield launch


@pytest.fixture(scope="module")
def smoke(launch_as_users, tmp_path_factory) -> tuple[Path, str]:
    """One finished run, and what it printed."""
    workdir = tmp_path_factory.mktemp("runs") / "smoke"
    done = launch_as_users("--config=configs/glyphs.py:smoke", f"--workdir={workdir}", "--config.rounds=5")
    assert done.returncode == 0, done.stderr
    return workdir, done.stdout


def test_a_run_leaves_what_it_promises(smoke):
    workdir, printed = smoke
    config = json.loads((workdir / "config.json").read_text())
    assert config["method"] == "fedss" and config["rounds"] == 5 and config["client"]["learning_rate"] > 0
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1, 2, 3, 4, 5]
    assert all({"train/loss", "comm/bytes_down", "comm/bytes_up"} <= line.keys() for line in lines[1:])
    evaluated = [line["round"] for line in lines if "eval/map10" in line]
    assert evaluated == [0, 2, 4, 5]  # the start, every second round, and the end
    assert {"eval/recall1", "eval/map_r", "eval/map10_ceiling", "train/top1"} <= lines[-1].keys()
    summary = json.loads((workdir / "summary.json").read_text())
    assert summary["final"] == {k: v for k, v in lines[-1].items() if k != "round"}
    assert summary["rounds_per_second"] > 0 and summary["seconds"] > summary["seconds_training"] > 0
    rows = 20 + 20
    sent = 4 * (summary["encoder_parameters"] + rows * 64)
    assert summary["communication"] == {"comm/classes": rows, "comm/bytes_down": sent, "comm/bytes_up": sent}
    assert (workdir / "curves.png").read_bytes().startswith(b"\x89PNG")
    table, where = printed.split("round 5/5")[1], printed.splitlines()[-1]
    assert "MAP@10" in table and "start" in table and str(workdir) in where


def test_the_same_command_gives_the_same_numbers(launch_as_users, smoke, tmp_path):
    done = launch_as_users("--config=configs/glyphs.py:smoke", f"--workdir={tmp_path}/again", "--config.rounds=5")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "again" / "metrics.jsonl").read_bytes() == (smoke[0] / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize(
    "settings",
    [
        ["--config=configs/glyphs.py:classification,block,smoke", "--config.method=fullsoftmax", "--config.rounds=2"],
        # It has no server, whose options would not fit adam.
        ["--config=configs/glyphs.py:smoke", "--config.method=centralized", "--config.server.optimizer=adam"],
        ["--config=configs/glyphs.py:smoke", "--config.method=fedaws", "--config.model.dtype=bfloat16"],
        [
            "--config=configs/glyphs.py:script,smoke",
            "--config.method=negonly",
            "--config.extra_negatives",
            "--config.server.optimizer=adam",
            "--config.server.options=eps=1e-3",
            "--config.server.learning_rate=0.01",
            "--config.server.row_weighting=holders",
        ],
    ],
    ids=["classification", "centralized", "fedaws-bfloat16", "negonly-adam-holders"],
)
def test_every_kind_of_run_ends_well(launch, settings, tmp_path):
    done = launch(*settings, f"--workdir={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "summary.json").read_text())["final"]["train/loss"] > 0


@pytest.mark.parametrize("config", ["sop", "landmarks", "imagenet21k", "pretrain"])
def test_the_papers_configs_run_on_made_up_pictures(launch, config, tmp_path):
    done = launch(f"--config=configs/{config}.py:smoke", "--config.model.options.depth=1", f"--workdir={tmp_path}")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["residency"] == "disk" and summary["seconds_waiting_for_data"] >= 0
    assert (tmp_path / "encoder.safetensors").stat().st_size > 4 * summary["encoder_parameters"]


@pytest.mark.parametrize(
    ("config", "ways"),
    [
        ("sop", ["data.root", "prepared", "data.download"]),
        ("landmarks", ["federated_train.csv"]),
        ("imagenet21k", ["synset"]),
        ("folder", ["data.root is not set", "a folder for each class"]),
        ("tfds", ["data.dataset"]),
        ("arrays", ["data.train"]),
    ],
)
def test_without_data_a_run_says_how_to_get_it(launch, config, ways, tmp_path):
    done = launch(f"--config=configs/{config}.py", f"--workdir={tmp_path}/run")
    assert done.returncode != 0 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert all(way in done.stderr for way in ways), done.stderr
    assert not (tmp_path / "run").exists()


def test_a_plan_is_printed_and_kept(launch, tmp_path):
    done = launch("--config=configs/glyphs.py:smoke", "--mode=plan", f"--workdir={tmp_path}/plan")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert "fits            yes" in done.stdout and "planned for the devices here" in done.stdout
    assert json.loads((tmp_path / "plan" / "plan.json").read_text())["devices"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config=configs/folder.py"], "data.root is not set"),
        (["--config=configs/sop.py", "--config.method=fedsgd"], "method is 'fedsgd', which does not exist"),
        (["--config=configs/sop.py", "--config.data.crop=300"], "data.crop is 300, more than data.image_size, 256"),
    ],
)
def test_a_mistake_in_a_plan_is_one_line(launch, arguments, message):
    done = launch(*arguments, "--mode=plan")
    assert done.returncode != 0 and message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["--config.method=fedsgd"], "method is 'fedsgd', which does not exist; choose one of fedss"),
        (["--config.num_clients=3"], "the config has no key num_clients; "),
        (["--config.eval.evry=3"], "the config has no key eval.evry; did you mean eval.every?"),
        (["--config.rounds=many"], "rounds is 'many'; it must be a whole number"),
        (["--config.num_negatives=181"], "181 negatives, but of 200 classes 20 are its own and 180 remain"),
        (["--config.clients_per_round=11"], "clients_per_round is 11, but the data has 10 clients; lower it"),
        (["--config.data.name=mnist"], "data.name is 'mnist'"),
        (["--config.data.residency=gpu"], "data.residency is 'gpu', which does not exist; choose one of auto"),
        (["--config.model.name=big"], "model.name is 'big', which does not exist"),
        (["--config.model.name=no.such:Net"], "No module named 'no'"),
        (["--config.init_from=nothing.safetensors"], "start at random with --config.init_from="),
        (["--workers=3"], "Unknown command line flag 'workers'"),
        (["--config.server.options=momentum=fast"], "optax.sgd does not work as server.optimizer"),
        (["--config.server.options.b1=3"], "the config has no key server.options.b1"),
        (["--config.server.optimizer=adam"], "--config.server.options= clears them"),
        (["--config.client.learning_rate=1e30"], "the training loss of round"),
        (["--mode=sweep"], "has no sweep"),
        (["rounds=3"], "cannot make sense of rounds=3"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(launch, settings, message, tmp_path):
    workdir = tmp_path / "run"
    done = launch("--config=configs/glyphs.py:smoke", f"--workdir={workdir}", *settings)
    assert done.returncode != 0
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert done.stderr.startswith("error: ") and message in done.stderr
    assert not (workdir / "summary.json").exists()
    assert "1e30" in settings[0] or not workdir.exists()  # only training itself can tell that it diverges


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("README.md", "README.md is not Python; choose"),
        ("configs/common.py", "data.name is not set"),
        ("configs/nothing.py", "configs/nothing.py does not exist"),
        ("configs/glyphs.py:fast", "config variant 'fast' does not exist; choose from retrieval, classification"),
    ],
)
def test_a_wrong_config_file_is_one_line(launch, config, message, tmp_path):
    done = launch(f"--config={config}", f"--workdir={tmp_path}/run")
    assert done.returncode != 0 and message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def get_config(:", "is not Python: line 1: invalid syntax"),
        ("import no_such_module", "fails with ModuleNotFoundError: No module named 'no_such_module' "),
        ("def get_config():\n  return 3", "returns int; it must return a ConfigDict"),
        ("def get_config():\n  raise KeyError('x')", "fails with KeyError: 'x' .* line 2"),
        ("get_configuration = 3", r"has no get_config\(\); add one"),
    ],
)
def test_a_config_file_that_fails_is_one_line(text, message, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        command_line.parse_flags(["launch.py", f"--config={path}"])
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--config.rounds=2.5", "rounds is '2.5'; it must be a whole number"),
        ("--config.client.learning_rate=fast", "client.learning_rate is 'fast'; it must be a number"),
        ("--config.correct_logits=perhaps", "correct_logits is 'perhaps'; it must be True or False"),
        ("--config.model.options=8", "model.options is '8'; it must be keys and values in braces"),
        ("--config.model.options.layers=(1,", r"model.options.layers is '\(1,'; it must be values in parentheses"),
        ("--config.rounds", "Missing value for flag --config.rounds"),
        ("--config.method=fed\nss", "has more than one line"),
        ("--cofig=configs/glyphs.py", "Unknown command line flag 'cofig'. Did you mean: config"),
    ],
)
@pytest.mark.filterwarnings("ignore:the load_module")  # how ml_collections reads a config file
def test_a_flag_that_cannot_be_read_is_one_line(word, message):
    argv = ["launch.py", "--config=configs/glyphs.py", word]
    known = flags.FlagValues()
    config_flags.DEFINE_config_file("config", flag_values=known, sys_argv=argv)
    with pytest.raises(UserError, match=message) as caught:
        command_line.parse_flags(argv, known)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no config was given; choose one such as --config=configs/glyphs.py"),
        (["--mode=eval"], "config.json cannot be read ([Errno 2] No such file or directory: 'config.json'); name"),
        (["--mode=export", "--workdir=/no/such"], "name the folder of a run with --workdir"),
        (["--mode=export", "--config=configs/glyphs.py"], "takes the config of the run in --workdir; leave out"),
        (["--flagfile=/no/such"], "Unable to open flagfile"),
    ],
)
def test_what_has_no_config_is_one_line(launch, arguments, message):
    done = launch(*arguments)
    assert done.returncode != 0 and message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_run_is_scored_and_exported_from_its_folder(launch, smoke):
    workdir, _ = smoke
    done = launch("--mode=eval", f"--workdir={workdir}", "--checkpoint=last")
    assert done.returncode == 0, done.stderr
    final = json.loads((workdir / "summary.json").read_text())["final"]
    scores = json.loads((workdir / "eval" / "eval.json").read_text())
    assert scores["eval/map10"] == pytest.approx(final["eval/map10"], abs=1e-3) and scores["round"] == 5
    done = launch("--mode=export", f"--workdir={workdir}", f"--into={workdir}/for others")
    assert done.returncode == 0 and (workdir / "for others" / "encoder.safetensors").exists(), done.stderr


def test_another_configs_workdir_and_an_unwritable_one_are_refused(launch, smoke, tmp_path):
    workdir, _ = smoke
    before = (workdir / "metrics.jsonl").read_bytes()
    done = launch("--config=configs/glyphs.py:smoke", f"--workdir={workdir}", "--config.seed=1")
    assert done.returncode != 0 and "seed (0 there, 1 here)" in done.stderr
    assert (workdir / "metrics.jsonl").read_bytes() == before
    (tmp_path / "file").write_text("")
    done = launch("--config=configs/glyphs.py:smoke", f"--workdir={tmp_path}/file/run")
    assert done.returncode != 0 and "cannot be written" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
