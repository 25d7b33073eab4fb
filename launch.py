"""Run a config: python launch.py --config=configs/glyphs.py [--workdir=DIR] [--config.method=negonly ...]

Stopped or killed, the same command with the same --workdir goes on.

What it would take on a machine that is not here: python launch.py --config=FILE --mode=plan --topology=v5e:16x16
What it has learnt, for others: python launch.py --mode=export --workdir=DIR [--checkpoint=best] [--into=DIR]
What a checkpoint scores, and its embeddings: python launch.py --mode=eval --workdir=DIR [--checkpoint=best]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from absl import app, flags, logging
from ml_collections import config_flags

from fedss_jax import chips, command_line, compilation, export, hosts, plan, score, sweep, train
from fedss_jax.types import UserError

try:
    CONFIG = config_flags.DEFINE_config_file(
        "config", None, "What to run, such as configs/glyphs.py or configs/glyphs.py:classification,smoke."
    )
except flags.Error as error:  # it opens a --flagfile at once
    sys.exit(f"error: {str(error).removeprefix('ERROR:: ')}")
MODE = flags.DEFINE_enum(
    "mode",
    "train",
    ["train", "sweep", "eval", "plan", "export"],
    "One run; every cell of the config's sweep(add); the scores of config.init_from, or of the run in --workdir; what a"
    " run would take; or the model of the run in --workdir as files.",
)
JOBS = flags.DEFINE_integer("jobs", 1, "How many runs of a sweep go at a time.", lower_bound=1)
TOPOLOGY = flags.DEFINE_string("topology", "", f"What to plan for: {chips.EXAMPLES}; if not given, the devices here.")
COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "HOST:PORT of process 0, where several processes meet; a TPU pod and SLURM need not be told."
)
NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "How many meet there.")
PROCESS_ID = flags.DEFINE_integer("process_id", None, "Which of them this is, from 0.")
JOIN_TIMEOUT = flags.DEFINE_integer("join_timeout", 300, "Seconds until all must have come.", lower_bound=1)
CHECKPOINT = flags.DEFINE_string("checkpoint", "last", "What to export or score: last, best, or the number of a round.")
INTO = flags.DEFINE_string("into", "", "Where to; if not given, a folder in the run's own.")
WORKDIR = flags.DEFINE_string("workdir", None, "Where the run's files go; if not given, a new folder under runs/.")


def main(argv: list[str]) -> None:
    logging.set_verbosity(logging.WARNING)
    chips.keep_quiet()
    config = CONFIG.value
    reads_run = MODE.value in command_line.READ_RUNS and config is None
    if MODE.value == "export" and not reads_run:
        raise UserError("--mode=export takes the config of the run in --workdir; leave out --config")
    if not reads_run and (CHECKPOINT.present or INTO.present):
        raise UserError("--checkpoint and --into are for --mode=export and --mode=eval of a run, without --config")
    if reads_run:
        compilation.keep()
        read = {"export": export.export, "eval": score.score_run}[MODE.value]
        read(WORKDIR.value or "", CHECKPOINT.value, INTO.value)
        return
    workdir = WORKDIR.value or time.strftime(f"runs/%Y%m%d-%H%M%S-{MODE.value}-{config.method}")
    if MODE.value == "train":
        with hosts.together(COORDINATOR.value, NUM_PROCESSES.value, PROCESS_ID.value, JOIN_TIMEOUT.value):
            compilation.keep()
            train.train(config, workdir)
    elif MODE.value == "plan":
        plan.show(config, TOPOLOGY.value, command_line.standin_data(sys.argv), WORKDIR.value)
    elif MODE.value == "eval":
        compilation.keep()
        score.score(config, workdir)
    else:
        file, _ = command_line.config_argument(sys.argv)
        cells = sweep.list_cells(command_line.load_config_file(file), config)
        # Of a flag that is given twice the last counts: each cell is this command, with its own settings added.
        sweep.sweep([sys.executable, *sys.argv, "--mode=train"], cells, Path(workdir), JOBS.value)


if __name__ == "__main__":
    try:
        app.run(main, flags_parser=command_line.parse_flags)
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:  # where there is nothing to save yet, or nothing left
        sys.exit(130)
