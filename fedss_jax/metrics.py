"""How numbers are written: a run's folder (config.json, metrics.jsonl, summary.json, events) and the terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fedss_jax.boards import Board, TensorBoard, WeightsAndBiases
from fedss_jax.report.configs import flat
from fedss_jax.types import UserError

SHOWN = {"eval/map10": "MAP@10", "eval/top1": "top-1"}  # the score beside the progress bar


class Workdir:
    """The folder of one run. Claiming it refuses a folder of another config's run, and writes nothing then.

    Scalars go into metrics.jsonl and into an event file of TensorBoard, and to a project of Weights & Biases if one is
    named. writes: of several processes one writes; to the others' calls nothing happens.
    """

    def __init__(self, path: str | os.PathLike, config: Mapping[str, Any], wandb: str = "", writes: bool = True):
        self.path, self.writes = Path(path), writes
        self._metrics = self.path / "metrics.jsonl"
        if not writes:
            return
        text = json.dumps(config, indent=2, sort_keys=True) + "\n"
        refuse_another_run(self.path, config)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._replace("config.json", text)
            self._metrics.write_text("")
            for old in self.path.glob("events.out.tfevents.*"):  # of a run that this one replaces
                old.unlink()
        except OSError as error:
            raise UserError(
                f"workdir {self.path} cannot be written ({error.strerror}); choose another with --workdir"
            ) from None
        (self.path / "summary.json").unlink(missing_ok=True)
        self._boards: list[Board] = [TensorBoard(self.path)]
        if wandb:
            self._boards.append(WeightsAndBiases(wandb, config))

    def _replace(self, name: str, text: str) -> None:
        """Writes a whole file or nothing."""
        temporary = self.path / f".{name}.tmp"
        temporary.write_text(text)
        temporary.replace(self.path / name)

    def write(self, round: int, scalars: Mapping[str, float]) -> None:
        if not self.writes:
            return
        with self._metrics.open("a") as file:
            file.write(json.dumps({"round": round, **scalars}, allow_nan=False) + "\n")
        for board in self._boards:
            board.write(round, scalars)

    def finish(self, summary: Mapping[str, Any]) -> None:
        for board in self._boards:
            board.close()
        self._replace("summary.json", json.dumps(summary, indent=2) + "\n")


def write_json(folder: str | os.PathLike, name: str, content: Mapping[str, Any]) -> None:
    """A file of its own in a folder, which is made if it is not there."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / name).write_text(json.dumps(content, indent=2) + "\n")
    except OSError as error:
        raise UserError(
            f"workdir {folder} cannot be written ({error.strerror}); choose another with --workdir"
        ) from None


def refuse_another_run(path: Path, config: Mapping[str, Any]) -> None:
    """Raises if the folder holds a run of another config than this one."""
    try:
        other = json.loads((path / "config.json").read_text())
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        raise UserError(
            f"workdir {path} has a config.json that cannot be read ({error}); choose another with --workdir"
        ) from None
    changed = [
        f"{key} ({_short(old)} there, {_short(new)} here)"
        for key, old, new in _differences(other, json.loads(json.dumps(config)))
    ]
    if changed:
        raise UserError(
            f"workdir {path} holds a run of another config: {', '.join(changed)}; choose another with --workdir"
        )


def _differences(old: Any, new: Any) -> list[tuple[str, Any, Any]]:
    old, new = flat(old), flat(new)
    keys = sorted(old.keys() | new.keys())
    return [(k, old.get(k), new.get(k)) for k in keys if old.get(k) != new.get(k)]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


class Progress:
    """A live bar on a terminal, plain lines elsewhere."""

    def __init__(self, rounds: int, line_every: int):
        self._rounds = rounds
        self._line_every = line_every
        self._shown: dict[str, str] = {}
        self._bar = None
        if sys.stdout.isatty():
            self._bar = tqdm(total=rounds, unit="round", file=sys.stdout, dynamic_ncols=True)

    def update(self, round: int, scalars: Mapping[str, float]) -> None:
        if "train/loss" in scalars:
            self._shown["loss"] = f"{scalars['train/loss']:.3f}"
        for key, name in SHOWN.items():
            if key in scalars:
                self._shown[name] = f"{scalars[key]:.4f}"
        if self._bar is not None:
            self._bar.set_postfix(self._shown, refresh=False)
            self._bar.update(round - self._bar.n)
        elif round % self._line_every == 0 or round == self._rounds:
            shown = "  ".join(f"{name} {value}" for name, value in self._shown.items())
            print(f"round {round:>{len(str(self._rounds))}}/{self._rounds}  {shown}", flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def say(line: str = "") -> None:
    print(line, flush=True)
