"""Reading the command line, with every mistake told in one line."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import os
import shlex
import sys
import traceback
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from absl import flags

from fedss_jax.types import UserError

READ_RUNS = ("export", "eval")  # modes that need no --config, as the run in --workdir has one
WANTED = {  # instead of what Python says of a value
    "invalid literal for int": "a whole number",
    "could not convert string to float": "a number",
    "Non-boolean argument": "True or False",
    "as a ConfigDict": "keys and values in braces, such as {} or {'groups': 8}",
    "as tuple": "values in parentheses, such as () or (256,)",
}


def load_config_file(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("config_file", path)
    if not os.path.isfile(path) or spec is None or spec.loader is None:
        wrong = "is not Python" if os.path.isfile(path) else "does not exist"
        wrong = f"config file {path} {wrong}" if path else "no config was given"
        raise UserError(f"{wrong}; choose one such as --config=configs/glyphs.py")
    module = importlib.util.module_from_spec(spec)
    with _told(path):
        spec.loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise UserError(f"config file {path} has no get_config(); add one that returns a ConfigDict")
    return module


def load_config(path: str, variant: list[str]) -> Any:
    """What get_config of a config file gives."""
    module = load_config_file(path)
    with _told(path):
        config = module.get_config(*variant)
    if not hasattr(config, "copy_and_resolve_references"):
        raise UserError(f"get_config() of {path} returns {type(config).__name__}; it must return a ConfigDict")
    return config


@contextlib.contextmanager
def _told(path: str) -> Iterator[None]:
    """Whatever goes wrong in a config file, as one line with the place."""
    try:
        yield
    except UserError:
        raise
    except SyntaxError as error:
        raise UserError(f"config file {path} is not Python: line {error.lineno}: {error.msg}") from None
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise UserError(
            f"config file {path} fails with {type(error).__name__}: {error} ({place.filename} line {place.lineno});"
            " correct it"
        ) from None


def config_argument(argv: list[str]) -> tuple[str, list[str]]:
    """The file that --config names, and its variant if one follows a colon."""
    for word, following in zip(argv, [*argv[1:], ""]):
        if word in ("--config", "-config") or word.startswith(("--config=", "-config=")):
            _, equals, value = word.partition("=")
            file, colon, variant = (value if equals else following).partition(":")
            return file, [variant] if colon else []
    return "", []


def standin_data(argv: list[str]) -> Any:
    """`data` of the config file's variant with made-up pictures, in the number of the real; None if it has none."""
    file, variant = config_argument(argv)
    try:
        return load_config(file, [",".join([*filter(None, variant), "standin"])]).data
    except UserError:
        return None


def typed() -> str:
    """The command that this is, as one could type it."""
    return shlex.join(["python", *sys.argv])


def to_go_on(workdir: str) -> str:
    """The same, with the folder that it goes on in."""
    named = any(word in ("--workdir", "-workdir") or word.startswith(("--workdir=", "-workdir=")) for word in sys.argv)
    return typed() if named else f"{typed()} {shlex.quote(f'--workdir={workdir}')}"


def parse_flags(argv: list[str], known: flags.FlagValues = flags.FLAGS) -> list[str]:
    """Flags as absl reads them, into those that are known."""
    if broken := next((word for word in argv if len(f"{word}.".splitlines()) > 1), None):
        raise UserError(f"{broken[:80]!r} has more than one line; give each setting in one")
    file, variant = config_argument(argv)
    if file:  # without one, absl may still have --help to answer
        load_config(file, variant)
    try:
        rest = known(argv)
    except (AttributeError, KeyError, TypeError):  # how ml_collections says that a config has no such key
        raise UserError(_unknown_key(argv)) from None
    except flags.Error as error:
        raise UserError(_wrong_value(str(error))) from None
    if len(rest) > 1:
        raise UserError(f"cannot make sense of {' '.join(rest[1:])}; options are written --name=value")
    if not file and known.mode not in READ_RUNS:
        load_config_file(file)
    return rest


def _wrong_value(told: str) -> str:
    """What absl and ml_collections tell of a flag, in plain words where they name Python's."""
    # A whole traceback if the config file fails; its last line says why.
    line = next(filter(None, map(str.strip, reversed(told.splitlines())))).removeprefix("fedss_jax.types.UserError: ")
    flag, colon, reason = line.removeprefix("flag --").partition(": ")
    wanted = next((wanted for words, wanted in WANTED.items() if words in reason), "")
    if not wanted or not colon:
        return line
    key, _, value = flag.partition("=")
    return f"{key.removeprefix('config.')} is {value[:80]!r}; it must be {wanted}"


def _unknown_key(argv: list[str]) -> str:
    """Which --config.KEY the config does not have, and what may have been meant."""
    file, variant = config_argument(argv)
    known = list(_keys(load_config(file, variant)))
    given = [word.removeprefix("--config.").partition("=")[0] for word in argv if word.startswith("--config.")]
    wrong = next((key for key in given if key not in known), "")
    if not wrong:
        whole = next((key for key in given if any(other.startswith(f"{key}.") for other in given)), "a section")
        return f"{whole} is set as a whole, without a key that is set besides; put all of its keys into the one setting"
    meant = difflib.get_close_matches(wrong, known, n=1)
    return f"the config has no key {wrong}; " + (f"did you mean {meant[0]}?" if meant else "its file lists the keys")


def _keys(config: Any, prefix: str = "") -> Iterator[str]:
    for key, value in config.items():
        yield prefix + key
        if hasattr(value, "items"):
            yield from _keys(value, f"{prefix}{key}.")
