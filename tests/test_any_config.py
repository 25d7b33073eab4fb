"""Whatever a config is set to, on the command line: it runs with finite numbers, or is refused in one line.

All keys are tried, as configs/arrays.py and configs/folder.py have them: a new one is covered by itself.
FEDSS_TRIES=1000 pytest -s tests/test_any_config.py tries more.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import layouts
import numpy as np
import pytest
from absl import flags
from hypothesis import given
from hypothesis import strategies as st
from ml_collections import ConfigDict, config_flags
from tries import enough, one_line, tell, tries

from configs import arrays, folder
from fedss_jax import command_line, parallel, simulation
from fedss_jax.config import ONE_OF
from fedss_jax.data.splits import SPLITS, TASKS
from fedss_jax.methods import METHODS
from fedss_jax.train import train
from fedss_jax.types import UserError

WHOLE_GOOD, WHOLE_BAD = ["1", "2", "4"], ["-1", "-7", str(2**31 - 1), str(2**31), str(10**12), "9" * 30]
REAL_GOOD, REAL_BAD = ["0.1", "0.5", "2"], ["0", "-1", "1e-300", "1e30", "1e300", "inf", "-inf", "nan"]
TUPLES = ["()", "(4,)", "(0,)", "(-1,)", "(1000000000,)", "((4,4,2),)", "((4,99,1),)", "((4,4),)", "3", "(1,", "('a',)"]
SECTIONS = ["{}", "3", "abc", "{'a': 1}", "{'fedss': 3}", "{'learning_rate': 'fast'}"]
WRONG = ["", "many", "1.5", "None", "True", "[]", "0x10"]
WORDS = ["nothing", "../..", "/dev/null", "a b", "été", "x" * 5000, "{}", "a\nb", "\udcff", "a=b", "==", "11"]
KNOWN = {
    "method": METHODS,
    "data.task": TASKS,
    "eval.split": SPLITS,
    "model.name": ("linear", "small", "mobilenet_v3_small", "os:path", "builtins:dict", "no.such:Net"),
    "model.dtype": ("float32", "bfloat16"),
    "data.on_bad_image": ("skip", "stop"),
    **dict.fromkeys(("server.optimizer", "centralized.optimizer"), ("sgd", "adam", "yogi", "adagrad", "lbfgs")),
    **dict.fromkeys(
        ("server.options", "centralized.options"),
        ("", "momentum=0.5", "momentum=nan", "momentum=2", "nesterov=True", "b1=(1,2)", "eps=1e-3", "b1=" + "(" * 999),
    ),
    **ONE_OF,
}
ALONE = ("rounds", "client.epochs")  # large and allowed, these would run for long


Small = dict[str, dict[str, str]]  # for each config file, settings that make it small


def walk(config: ConfigDict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All keys, sections included, with what they hold."""
    for key in config:
        value = config._fields[key]
        yield prefix + key, value
        if isinstance(value, ConfigDict):
            yield from walk(value, f"{prefix}{key}.")


def values(key: str, held: Any, good: bool) -> st.SearchStrategy[str]:
    """What a key is set to, as it is typed: something of its kind, or not."""
    if isinstance(held, bool):
        kind, others = ["True", "False"], ["2", "maybe", ""]
    elif isinstance(held, int):
        kind, others = WHOLE_GOOD + ["0"] * (key not in ALONE), WHOLE_BAD + WRONG
    elif isinstance(held, str):
        kind, others = list(KNOWN.get(key, [held])), WORDS
    elif isinstance(held, tuple):
        kind, others = TUPLES, WRONG
    elif isinstance(held, ConfigDict):
        kind, others = SECTIONS, WRONG
    else:  # a float, or the place of one
        kind, others = REAL_GOOD, REAL_BAD + WRONG
    return st.sampled_from(kind) if good else st.sampled_from([*kind, *others])


pytestmark = pytest.mark.filterwarnings("ignore:the load_module")  # how ml_collections reads a config file
ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Any text may be taken for the name of a folder, which is then made."""
    (here := tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(here)


BASES = {
    "configs/arrays.py": arrays.get_config(),
    "configs/arrays.py:images": arrays.get_config("images"),
    "configs/folder.py": folder.get_config(),
}


@st.composite
def command_lines(draw: st.DrawFn, good: bool) -> tuple[str, dict[str, str]]:
    """A config file and one to four settings."""
    base = draw(st.sampled_from(list(BASES)))
    keys = dict(walk(BASES[base]))
    chosen = draw(st.lists(st.sampled_from(list(keys)), min_size=1, max_size=4, unique=True))
    return base, {key: draw(values(key, keys[key], good)) for key in chosen}


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Small:
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    labels = np.arange(48) % 8
    np.savez(root / "features.npz", features=rng.normal(size=(48, 6)), labels=labels, clients=np.arange(48) // 12)
    np.savez(root / "images.npz", images=rng.integers(0, 256, (48, 8, 8), np.uint8), labels=labels)
    layouts.class_folders(root / "photos", {f"class{i}": 6 for i in range(4)})
    common = {"rounds": "2", "client.batch_size": "4", "eval.every": "1", "eval.batch_size": "8"}
    layers = {"model.name": "small", "model.options": "{'layers': ((4, 4, 2),), 'groups': 2}"}
    mobilenet = {"model.name": "mobilenet_v3_small", "model.options.depth": "1", "model.options.width": "0.25"}
    pictures = {"data.image_size": "36", "data.crop": "32", "data.cache_dir": str(root / "cache")}
    return {
        "configs/arrays.py": {**common, "data.train": f"{root}/features.npz"},
        "configs/arrays.py:images": {**common, **layers, "data.train": f"{root}/images.npz"},
        "configs/folder.py": {**common, **mobilenet, **pictures, "data.root": f"{root}/photos"},
    }


def read(base: str, settings: dict[str, str]) -> ConfigDict:
    """As launch.py reads it."""
    argv = ["launch.py", f"--config={ROOT / base}", *(f"--config.{key}={value}" for key, value in settings.items())]
    known = flags.FlagValues()
    config_flags.DEFINE_config_file("config", flag_values=known, sys_argv=argv)
    command_line.parse_flags(argv, known)
    return known.config


def is_named(message: str, key: str, value: str) -> bool:
    """Whether one can tell from a message that it is about this setting: by the key, its section or the value."""
    section, _, name = key.rpartition(".")
    return (
        name in message or (section == "model.options" and section in message) or (len(value) > 1 and value in message)
    )


def attempt(small: Small, drawn: tuple[str, dict[str, str]], do: Callable[[ConfigDict], Any]) -> Any:
    """What comes of it; None if it is refused, which must be in one line that tells which setting it was."""
    base, settings = drawn
    try:
        return do(read(base, small[base] | settings))
    except UserError as error:
        message = str(error)
        diverged = message.startswith(("the training loss of round", "parameters are infinite"))
        named = any(is_named(message, key, value) for key, value in settings.items())
        assert one_line(message) and (named or diverged), message
        return None


def test_any_config_is_accepted_or_refused_in_one_line(small, capsys):
    outcomes, mesh = Counter(), parallel.make_mesh(jax.devices()[:1])

    @tries(150)
    @given(command_lines(good=False))
    def check(drawn):
        accepted = attempt(small, drawn, lambda config: simulation.prepare(config, mesh))
        outcomes["accepted" if accepted else "refused"] += 1
        capsys.readouterr()

    check()
    with capsys.disabled():
        tell("configs", outcomes)
    assert min(outcomes["accepted"], outcomes["refused"]) >= 10


def test_any_config_that_is_accepted_runs(small, tmp_path, one_device, capsys):
    """Two rounds, from the command line to the page. Only that can tell, but it takes seconds."""
    outcomes, numbers = Counter(), itertools.count()

    @tries(40, of_asked=0.03)
    @given(command_lines(good=True))
    def check(drawn):
        if enough(outcomes, 3):
            return
        summary = attempt(small, drawn, lambda config: train(config, str(tmp_path / str(next(numbers)))))
        outcomes["ran" if summary else "refused"] += 1
        if summary:
            told = [*summary["start"].values(), *summary["final"].values()]
            assert all(map(math.isfinite, told)) and summary["rounds"] >= 1, summary
        capsys.readouterr()

    check()
    with capsys.disabled():
        tell("runs", outcomes)
    assert outcomes["ran"]
