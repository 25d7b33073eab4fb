"""A run, read back from its folder: its data, its model, and what it has learnt."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedss_jax import data, parallel, parts, simulation, weights
from fedss_jax.checkpoint import Checkpoint, Checkpoints
from fedss_jax.config import read_config
from fedss_jax.evaluate.embed import make_embed
from fedss_jax.simulation import Setup
from fedss_jax.types import Dataset, Images, Model, Theta, UserError


class Run(NamedTuple):
    config: Any
    dataset: Dataset
    model: Model
    theta: Theta
    embed: Callable[[Images, np.ndarray], np.ndarray]  # unit vectors [N, d] of some rows [N] of images


def read(folder: Path) -> Run:
    if not (folder / "summary.json").exists():
        raise UserError(f"{folder} is not the folder of a finished run: it has no summary.json")
    config = read_config(folder)
    dataset, mesh = data.find(config.data.name, config.eval.split, parts.source_options(config))(), parallel.make_mesh()
    model = parts.make_model(config, dataset, mesh)
    encoder, _ = weights.load(folder / "encoder.safetensors", model.init(jax.random.key(0)))
    theta = Theta(encoder, jax.numpy.asarray(weights.read_array(folder / "class_matrix.npy")))
    embed = make_embed(model, dataset.transform, mesh, config.eval.batch_size)
    return Run(config, dataset, model, theta, partial(embed, theta.encoder))


def restore(folder: Path, which: str) -> tuple[Setup, Checkpoint]:
    """What a run's config describes, and one of its checkpoints: last, best or that of a round. It may go on yet."""
    setup = simulation.prepare(read_config(folder), parallel.make_mesh())
    with Checkpoints(
        folder / "checkpoints",
        setup.server.rows.layout,
        setup.identity,
        setup.arrangement,
        keep=setup.config.checkpoint.keep,
        on_error="stop",
    ) as checkpoints:
        if not checkpoints.rounds():
            raise UserError(f"{folder} has no checkpoint; name the folder of a run with --workdir")
        remedy = "try again if the run goes on, or choose another with --checkpoint"
        return setup, checkpoints.restore(setup.abstract_state, which, remedy)


def run_command(main: Callable[[], None]) -> None:
    """A command's main; what its user did wrong is told in one line."""
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
