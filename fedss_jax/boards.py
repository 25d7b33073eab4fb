"""Where people already look at numbers: TensorBoard and Weights & Biases."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from tensorboardX import SummaryWriter

from fedss_jax.types import UserError


class Board(Protocol):
    def write(self, round: int, scalars: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in a folder, for `tensorboard --logdir`. TensorFlow is not needed."""

    def __init__(self, folder: Path):
        self._writer = SummaryWriter(str(folder))

    def write(self, round: int, scalars: Mapping[str, float]) -> None:
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, round)

    def close(self) -> None:
        self._writer.close()


def check_wandb(project: str) -> None:
    """Whether a project, if one is named, can be logged to."""
    if project and importlib.util.find_spec("wandb") is None:
        raise UserError(
            f"wandb is {project!r}, but the package is not installed; pip install wandb, or clear it with"
            " --config.wandb="
        )


class WeightsAndBiases:
    """A run of a project. WANDB_MODE=offline keeps it on this machine."""

    def __init__(self, project: str, config: Mapping[str, Any]):
        import wandb  # an optional extra

        self._run = wandb.init(project=project, config=dict(config))

    def write(self, round: int, scalars: Mapping[str, float]) -> None:
        self._run.log(dict(scalars), step=round)

    def close(self) -> None:
        self._run.finish()
