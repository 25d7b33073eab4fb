"""Where people already look at numbers: TensorBoard and Weights & Biases."""

from __future__ import annotations

import importlib.util
import platform
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import masked_crc32c
from tensorboardX.summary import scalar

from fedss_jax.appending import Appending
from fedss_jax.types import UserError

WRITE_EVERY = 5.0  # seconds, that somebody who watches may wait


class Board(Protocol):
    def write(self, round: int, scalars: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in a folder, for `tensorboard --logdir`, one for each start of a run. TensorFlow is not needed.

    (Not by tensorboardX's SummaryWriter: its thread ends when the disk is full, and the run then waits for it.)
    """

    def __init__(self, folder: Path, done: int):
        """done: rounds before this start. What an earlier start has told of later ones does not count any more."""
        self._file = Appending(folder / f"events.out.tfevents.{time.time():.0f}.{platform.node()}.{done}")
        self._written_at = 0.0
        self._add(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if done:
            start = SessionLog(status=SessionLog.START)
            self._add(Event(step=done + 1, wall_time=time.time(), session_log=start))

    def _add(self, event: Event) -> None:
        """A record: the length and its checksum, the event, and its checksum."""
        content = event.SerializeToString()
        length = struct.pack("<Q", len(content))
        sums = [struct.pack("<I", masked_crc32c(part)) for part in (length, content)]
        self._file.add(length + sums[0] + content + sums[1])

    def write(self, round: int, scalars: Mapping[str, float]) -> None:
        for name, value in scalars.items():
            self._add(Event(step=round, wall_time=time.time(), summary=scalar(name, value)))
        if time.monotonic() - self._written_at > WRITE_EVERY:
            self._written_at = time.monotonic()
            self._file.write()

    def close(self) -> None:
        self._file.write()


def check_wandb(project: str) -> None:
    """Whether a project, if one is named, can be logged to."""
    if project and importlib.util.find_spec("wandb") is None:
        raise UserError(
            f"wandb is {project!r}, but the package is not installed; pip install wandb, or clear it with"
            " --config.wandb="
        )


class WeightsAndBiases:
    """A run of a project, the same at every start in a folder. WANDB_MODE=offline keeps it on this machine."""

    def __init__(self, project: str, config: Mapping[str, Any], folder: Path, done: int):
        import wandb  # an optional extra

        name = folder / "wandb_run"
        before = name.read_text().strip() if done and name.exists() else None
        self._run = wandb.init(project=project, config=dict(config), id=before, resume="allow")
        name.write_text(f"{self._run.id}\n")

    def write(self, round: int, scalars: Mapping[str, float]) -> None:
        self._run.log(dict(scalars), step=round)

    def close(self) -> None:
        self._run.finish()
