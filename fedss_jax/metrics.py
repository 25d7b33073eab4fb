"""How numbers are written: a run's folder (config.json, metrics.jsonl, summary.json, events) and the terminal."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fedss_jax import lock
from fedss_jax.appending import Appending
from fedss_jax.boards import Board, TensorBoard, WeightsAndBiases
from fedss_jax.report.configs import flat
from fedss_jax.types import UserError

ANEW = "give back what was there, or delete the folder to start anew"
SHOWN = {"eval/map10": "MAP@10", "eval/top1": "top-1"}  # the score beside the progress bar


class Workdir(contextlib.AbstractContextManager["Workdir"]):
    """The folder of one run, which has it to itself until it is closed; `begin` comes before anything is written.

    A folder of another config's run is refused, as is one in which a run is under way. Scalars go into metrics.jsonl
    and into an event file of TensorBoard, and to a project of Weights & Biases if one is named. writes: of several
    processes one writes; to the others' calls nothing happens.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        config: Mapping[str, Any],
        wandb: str = "",
        writes: bool = True,
        may_change: Sequence[str] = (),
    ):
        """may_change: keys of the config, or sections, in which the run there may differ."""
        self.path, self.writes = Path(path), writes
        self._config, self._wandb = config, wandb
        self._boards: list[Board] = []
        self._trouble = ""
        if writes:
            refuse_another_run(self.path, config, may_change)
            with writable(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
                self._lock = lock.take(self.path)

    def begin(self, done: int = 0) -> None:
        """From after so many rounds on: what is told of later ones goes, and if there are none, all of it."""
        if not self.writes:
            return
        with writable(self.path):
            metrics = self.path / "metrics.jsonl"
            self._metrics = Appending(metrics, first_rounds(metrics, done) if done else b"")
            (self.path / "summary.json").unlink(missing_ok=True)
            self._replace("config.json", json.dumps(self._config, indent=2, sort_keys=True) + "\n")
            if not done:
                for old in self.path.glob("events.out.tfevents.*"):
                    old.unlink()
            self._boards.append(TensorBoard(self.path, done))
            if self._wandb:
                self._boards.append(WeightsAndBiases(self._wandb, self._config, self.path, done))

    def _replace(self, name: str, text: str) -> None:
        """Writes a whole file or nothing."""
        temporary = self.path / f".{name}.tmp"
        temporary.write_text(text)
        temporary.replace(self.path / name)

    def write(self, round: int, scalars: Mapping[str, float]) -> None:
        """If the disk is full, they wait for room."""
        if not self.writes:
            return
        self._metrics.add((json.dumps({"round": round, **scalars}, allow_nan=False) + "\n").encode())
        trouble = ""
        writes: list[Callable[[], None]] = [self._metrics.write]
        writes += [partial(board.write, round, scalars) for board in self._boards]
        for write in writes:
            try:
                write()
            except OSError as error:
                trouble = f"{self.path} cannot be written ({error.strerror}); its numbers wait in memory until it can"
        if trouble and not self._trouble:
            say(f"warning: {trouble}")
        self._trouble = trouble

    def sync(self) -> None:
        """All that was told is on the disk when this returns. Raises OSError."""
        if self.writes:
            self._metrics.write(durable=True)

    def finish(self, summary: Mapping[str, Any]) -> None:
        with writable(self.path):
            self.sync()
            self._replace("summary.json", json.dumps(summary, indent=2) + "\n")

    def __exit__(self, *reason: Any) -> None:
        for board in self._boards:
            with contextlib.suppress(OSError):  # of numbers, metrics.jsonl has all
                board.close()
        if self.writes:
            self._lock.close()


@contextlib.contextmanager
def writable(folder: str | os.PathLike) -> Iterator[None]:
    """What is written inside goes into the folder; if it cannot, that is one line."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) or "requested and" in str(error)  # NumPy's way to say so
        remedy = "make room and start again" if full else "choose another with --workdir"
        raise UserError(f"workdir {folder} cannot be written ({error.strerror or error}); {remedy}") from None


def first_rounds(path: Path, done: int) -> bytes:
    """Of metrics.jsonl the lines of the start and of so many rounds, which must all be there."""
    lines = path.read_bytes().splitlines(keepends=True)[: done + 1] if path.exists() else []
    for round, line in enumerate(lines):
        try:
            complete = json.loads(line)["round"] == round and line.endswith(b"\n")
        except (ValueError, KeyError, TypeError):
            complete = False
        if not complete:
            raise UserError(f"line {round + 1} of {path} is not that of round {round}; {ANEW}")
    if len(lines) <= done:
        raise UserError(f"{path} ends before round {len(lines)}, but the checkpoint is of round {done}; {ANEW}")
    return b"".join(lines)


def write_json(folder: str | os.PathLike, name: str, content: Mapping[str, Any]) -> None:
    """A file of its own in a folder, which is made if it is not there."""
    with writable(folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / name).write_text(json.dumps(content, indent=2) + "\n")


def finished_run(path: Path, config: Mapping[str, Any], may_change: Sequence[str]) -> dict[str, Any] | None:
    """The summary of the run in the folder, if it has come as far as the config goes. Raises if it is another's."""
    refuse_another_run(path, config, may_change)
    if (path / lock.FILE).exists():
        with writable(path):
            lock.take(path).close()
    try:
        summary = json.loads((path / "summary.json").read_text())
    except (OSError, ValueError):
        return None
    if summary["rounds"] > config["rounds"]:
        refuse_fewer_rounds(path, config["rounds"], summary["rounds"])
    return summary if summary["rounds"] == config["rounds"] else None


def refuse_fewer_rounds(path: Path, rounds: int, done: int) -> None:
    raise UserError(
        f"rounds is {rounds}, but the run in {path} has done {done}; raise it, or choose another folder with --workdir"
    )


def refuse_another_run(path: Path, config: Mapping[str, Any], may_change: Sequence[str] = ()) -> None:
    """Raises if the folder holds a run of another config than this one; what may change may differ."""
    try:
        other = json.loads((path / "config.json").read_text())
        if not isinstance(other, dict):
            raise ValueError("it holds no settings")
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        raise UserError(
            f"workdir {path} has a config.json that cannot be read ({error}); choose another with --workdir"
        ) from None
    changed = [
        f"{key} ({_short(old)} there, {_short(new)} here)"
        for key, old, new in _differences(other, json.loads(json.dumps(config)))
        if not any(key == free or key.startswith(f"{free}.") for free in may_change)
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
            say(f"round {round:>{len(str(self._rounds))}}/{self._rounds}  {shown}")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def say(line: str = "") -> None:
    with contextlib.suppress(OSError):  # the disk may be full that the output goes to; what is not written yet waits
        print(line, flush=True)
