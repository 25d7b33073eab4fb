"""Run a config: python launch.py --config=configs/glyphs.py [--workdir=DIR] [--config.method=negonly ...]"""

from __future__ import annotations

import difflib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from fedss_jax import sweep
from fedss_jax.types import UserError

CONFIG = config_flags.DEFINE_config_file(
    "config", None, "What to run, such as configs/glyphs.py or configs/glyphs.py:classification,smoke."
)
MODE = flags.DEFINE_enum("mode", "train", ["train", "sweep"], "One run, or every cell of the config's sweep(add).")
JOBS = flags.DEFINE_integer("jobs", 1, "How many runs of a sweep go at a time.", lower_bound=1)
WORKDIR = flags.DEFINE_string("workdir", None, "Where the run's files go; if not given, a new folder under runs/.")


def main(argv: list[str]) -> None:
    logging.set_verbosity(logging.WARNING)
    config = CONFIG.value
    if not isinstance(config, ConfigDict):
        file = config_argument(sys.argv)
        wrong = f"config file {file} does not exist" if file else "no config was given"
        raise UserError(f"{wrong}; choose one such as --config=configs/glyphs.py")
    name = f"{config.data.name}-{config.method if MODE.value == 'train' else 'sweep'}"
    workdir = WORKDIR.value or time.strftime(f"runs/%Y%m%d-%H%M%S-{name}")
    if MODE.value == "sweep":
        return run_sweep(Path(workdir))
    from fedss_jax import train  # here, so that a mistyped flag is told before JAX starts

    train.train(config, workdir)


def run_sweep(workdir: Path) -> None:
    settings = [word for word in sys.argv[1:] if word.startswith("--config")]
    cells = sweep.load_cells(config_argument(sys.argv).partition(":")[0])
    failed = sweep.run([sys.executable, sys.argv[0], *settings], cells, workdir, JOBS.value)
    table = sweep.table(cells, workdir)
    (workdir / "table.md").write_text(table + "\n")
    print(f"{table}\n\n{len(cells) - len(failed)} of {len(cells)} runs are done; {workdir} has them and table.md")
    if failed:
        reasons = "; ".join(f"{cell}: {reason}" for cell, reason in failed.items())
        raise UserError(f"{len(failed)} of {len(cells)} runs failed: {reasons}")


def parse_flags(argv: list[str]) -> list[str]:
    """Flags as absl reads them, with every mistake told in one line."""
    try:
        rest = flags.FLAGS(argv)
    except (AttributeError, KeyError):
        raise UserError(unknown_key(argv)) from None
    except flags.Error as error:
        # absl puts a whole traceback in here if the config file fails; its last line says why.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise UserError(lines[-1].removeprefix("fedss_jax.types.UserError: ")) from None
    if len(rest) > 1:
        raise UserError(f"cannot make sense of {' '.join(rest[1:])}; options are written --name=value")
    return rest


def config_argument(argv: list[str]) -> str:
    return next((word.removeprefix("--config=") for word in argv if word.startswith("--config=")), "")


def unknown_key(argv: list[str]) -> str:
    """Which --config.KEY the config does not have, and what may have been meant."""
    file, colon, variant = config_argument(argv).partition(":")
    known = list(flat_keys(sweep.load_config_file(file).get_config(*([variant] if colon else []))))
    given = [word.removeprefix("--config.").partition("=")[0] for word in argv if word.startswith("--config.")]
    wrong = next(key for key in given if key not in known)
    meant = difflib.get_close_matches(wrong, known, n=1)
    return f"the config has no key {wrong}; " + (f"did you mean {meant[0]}?" if meant else "its file lists the keys")


def flat_keys(config: ConfigDict, prefix: str = "") -> Iterator[str]:
    for key, value in config.items():
        yield prefix + key
        if isinstance(value, ConfigDict):
            yield from flat_keys(value, f"{prefix}{key}.")


if __name__ == "__main__":
    try:
        app.run(main, flags_parser=parse_flags)
    except UserError as error:
        sys.exit(f"error: {error}")
