"""A finished run, read back from its folder: its data, its model, and what it has learnt."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedss_jax import data, parallel, parts, weights
from fedss_jax.config import read_config
from fedss_jax.evaluate.embed import make_embed
from fedss_jax.types import Dataset, Images, Model, Theta, UserError


class Run(NamedTuple):
    config: Any
    dataset: Dataset
    model: Model
    theta: Theta

    def embed(self, images: Images, rows: np.ndarray) -> np.ndarray:
        """Unit vectors [N, d] of some rows [N] of the images."""
        embed = make_embed(self.model, self.dataset.transform, parallel.make_mesh(), self.config.eval.batch_size)
        return embed(self.theta.encoder, images, rows)


def read(folder: Path) -> Run:
    if not (folder / "summary.json").exists():
        raise UserError(f"{folder} is not the folder of a finished run: it has no summary.json")
    config = read_config(folder)
    dataset = data.find(config.data.name, config.eval.split, parts.source_options(config))()
    model = parts.make_model(config, dataset, parallel.make_mesh())
    encoder, _ = weights.load(folder / "encoder.safetensors", model.init(jax.random.key(0)))
    return Run(
        config, dataset, model, Theta(encoder, jax.numpy.asarray(weights.read_array(folder / "class_matrix.npy")))
    )


def run_command(main: Callable[[], None]) -> None:
    """A command's main; what its user did wrong is told in one line."""
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
