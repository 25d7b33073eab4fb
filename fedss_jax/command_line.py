"""Reading the command line, with every mistake told in one line."""

from __future__ import annotations

import difflib
import importlib.util
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from absl import flags

from fedss_jax.types import UserError


def load_config_file(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("config_file", path)
    if not Path(path).is_file() or spec is None or spec.loader is None:
        wrong = "does not exist" if not Path(path).is_file() else "is not Python"
        wrong = f"config file {path} {wrong}" if path else "no config was given"
        raise UserError(f"{wrong}; choose one such as --config=configs/glyphs.py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise UserError(f"config file {path} is not Python: line {error.lineno}: {error.msg}") from None
    if not hasattr(module, "get_config"):
        raise UserError(f"config file {path} has no get_config()")
    return module


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
        return load_config_file(file).get_config(",".join([*filter(None, variant), "standin"])).data
    except UserError:
        return None


def typed() -> str:
    """The command that this is, as one could type it."""
    return shlex.join(["python", *sys.argv])


def parse_flags(argv: list[str]) -> list[str]:
    """Flags as absl reads them."""
    file, _ = config_argument(argv)
    if file:  # without one, absl may still have --help to answer
        load_config_file(file)
    try:
        rest = flags.FLAGS(argv)
    except (AttributeError, KeyError, TypeError):  # how ml_collections says that a config has no such key
        raise UserError(_unknown_key(argv)) from None
    except flags.Error as error:
        # absl puts a whole traceback in here if the config file fails; its last line says why.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise UserError(lines[-1].removeprefix("fedss_jax.types.UserError: ")) from None
    if len(rest) > 1:
        raise UserError(f"cannot make sense of {' '.join(rest[1:])}; options are written --name=value")
    if not file:
        load_config_file(file)
    return rest


def _unknown_key(argv: list[str]) -> str:
    """Which --config.KEY the config does not have, and what may have been meant."""
    file, variant = config_argument(argv)
    known = list(_keys(load_config_file(file).get_config(*variant)))
    given = [word.removeprefix("--config.").partition("=")[0] for word in argv if word.startswith("--config.")]
    wrong = next((key for key in given if key not in known), "of that name")
    meant = difflib.get_close_matches(wrong, known, n=1)
    return f"the config has no key {wrong}; " + (f"did you mean {meant[0]}?" if meant else "its file lists the keys")


def _keys(config: Any, prefix: str = "") -> Iterator[str]:
    for key, value in config.items():
        yield prefix + key
        if hasattr(value, "items"):
            yield from _keys(value, f"{prefix}{key}.")
