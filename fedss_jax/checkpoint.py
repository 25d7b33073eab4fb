"""Checkpoints of a run: written while it goes on, there whole or not at all, and read on any devices. By Orbax.

A folder for each, named by its round. The newest few stay, and the best by its score. Each has the server's state, a
digest of its bits, and what else a run must know to go on. If the newest is damaged, the one before takes its place.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from fedss_jax import hosts
from fedss_jax.digest import digest
from fedss_jax.metrics import ANEW, say, writable
from fedss_jax.rows import Layout
from fedss_jax.types import ServerState, UserError

METADATA = "_CHECKPOINT_METADATA"  # Orbax's file that has what a checkpoint says of itself
# Orbax prints stacks of what fails in its thread, which is told here in a line.
logging.getLogger("absl").addFilter(lambda record: "orbax" not in record.pathname)


class Checkpoint(NamedTuple):
    round: int
    state: ServerState
    about: dict[str, Any]  # as `save` was given it
    changed: list[str]  # in the arrangement since then


class Checkpoints:
    """Use it in a `with`: its threads end with that. Before, `wait` for what is being written."""

    def __init__(
        self,
        folder: Path,
        layout: Layout,
        identity: Mapping[str, Any],
        arrangement: Mapping[str, Any],
        *,
        keep: int,
        on_error: str,
    ):
        """identity: of run and data; a checkpoint that was written with another is refused.

        arrangement: of the computation on this machine; with another the numbers are the same up to rounding only.
        on_error: whether to "continue" or to "stop" when one cannot be written.
        """
        self.folder = folder.absolute()
        self._layout, self._keep, self._on_error = layout, keep, on_error
        self._identity, self._arrangement = dict(identity), dict(arrangement)
        # Compression would gain little on such numbers, and take longer than writing them.
        self._handler = ocp.PyTreeCheckpointHandler(use_compression=False)
        # If a folder cannot be made, that is to be heard at once; a thread would wait for it for minutes.
        options = ocp.options.AsyncOptions(create_directories_asynchronously=False)
        self._writer = ocp.AsyncCheckpointer(self._handler, async_options=options)
        self._newest = 0  # before the first round there is nothing to save
        self._writing: int | None = None  # the round that is being written
        self._scores: dict[int, float] = {}
        self._damaged: list[int] = []
        self.shared = _is_shared(self.folder.parent)

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *reason: Any) -> None:
        with contextlib.suppress(Exception):  # who wants to hear of it calls `wait`
            self._writer.close()

    def rounds(self) -> list[int]:
        """Of which there is a checkpoint, in ascending order."""
        if not self.shared or not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdigit())

    def best(self) -> int | None:
        """The round of the one with the highest score; the later of two."""
        scores = {round: self._score(round) for round in self.rounds()}
        scored = [(score, round) for round, score in scores.items() if score is not None]
        return max(scored)[1] if scored else None

    def save(
        self, round: int, state: ServerState, score: float | None, about: Mapping[str, Any], sync: Callable[[], None]
    ) -> None:
        """Begins to write. The state may be given up when this returns.

        sync: makes sure that all else that belongs to the round is on the disk; it may raise OSError.
        """
        self.wait()
        if not self.shared or round == self._newest:
            return
        try:
            if hosts.is_first():
                sync()
                self.folder.mkdir(exist_ok=True)
            told = {
                "identity": self._identity,
                "arrangement": self._arrangement,
                "arrays": _dtypes(state),
                "digest": digest(self._layout, state),
                "score": score,
                "about": dict(about),
            }
            told["fingerprint"] = hosts.fingerprint(json.dumps(told, sort_keys=True))
            arguments = ocp.args.PyTreeSave(_flat(state))
            self._writer.save(self.folder / str(round), args=arguments, custom_metadata=told)
            self._writing = round
        except (OSError, ValueError) as error:
            self._failed(round, error)

    def wait(self) -> None:
        """Until all that was begun is written. What could not be is told, and what is too old goes."""
        round, self._writing = self._writing, None
        if round is None:
            return
        try:
            self._writer.wait_until_finished()
        except Exception as error:  # Orbax and what it stands on raise nearly anything
            self._failed(round, error)
        else:
            self._newest = round
            if hosts.is_first():
                try:
                    self._make_durable(round)
                    self._delete_old()
                except OSError as error:
                    say(f"warning: checkpoints before round {round} cannot be deleted ({_reason(error)})")

    def restore(self, abstract: ServerState, which: str = "last", remedy: str = ANEW) -> Checkpoint:
        """The newest that is sound, the best, or that of a round. abstract: the state's shapes and places.

        Nothing is changed: others may look at a run that goes on. remedy: what to do if none can be read.
        """
        damaged: dict[int, str] = {}
        for round in self._candidates(which):
            told: dict[str, Any] = {}
            state, wrong = None, ""
            try:
                told = self._told(round)
            except Exception as error:
                wrong = _reason(error)
            if told:
                self._refuse_another(round, told, abstract)
                try:
                    state = self._read(round, abstract)
                except Exception as error:
                    wrong = _reason(error)
            if hosts.least(int(state is not None)) and state is not None:
                wrong = (
                    "" if digest(self._layout, state) == told["digest"] else "its bits are not those that were saved"
                )
                if not wrong:
                    self._tell(damaged, round)
                    self._newest = round
                    return Checkpoint(round, state, told["about"], self._changed(told["arrangement"]))
            if not (self.folder / str(round)).exists():  # the run goes on, and has newer ones by now
                return self.restore(abstract, which, remedy)
            damaged[round] = wrong or "another process could not read it"
        reasons = "; ".join(f"round {round}: {wrong}" for round, wrong in damaged.items())
        raise UserError(f"no checkpoint in {self.folder} can be read ({reasons}); {remedy}")

    def _candidates(self, which: str) -> list[int]:
        rounds = self.rounds()
        if which == "last":
            return rounds[::-1]
        chosen = self.best() if which == "best" else int(which) if which.isdigit() else None
        if chosen not in rounds:
            there = ", ".join(map(str, rounds)) or "none"
            raise UserError(f"there is no checkpoint {which} in {self.folder}; choose last, best or one of {there}")
        return [chosen]

    def _read(self, round: int, abstract: ServerState) -> ServerState:
        by_row = jax.tree.map(lambda _: False, abstract)
        by_row = by_row._replace(rows=jax.tree.map(self._layout.is_by_row, abstract.rows))

        def how(array: jax.ShapeDtypeStruct, has_padding: bool) -> ocp.ArrayRestoreArgs:
            # On other devices W is filled up by another number of rows, which are zero then.
            return ocp.ArrayRestoreArgs(
                sharding=array.format, global_shape=array.shape, dtype=array.dtype, strict=not has_padding
            )

        arguments = ocp.args.PyTreeRestore(
            item=_flat(abstract), restore_args=_flat(jax.tree.map(how, abstract, by_row))
        )
        # Not by the writer, whose processes would wait for one that cannot read.
        arrays = self._handler.restore(self.folder / str(round), args=arguments)
        return jax.tree.unflatten(jax.tree.structure(abstract), [arrays[name] for name in _flat(abstract)])

    def _told(self, round: int) -> dict[str, Any]:
        # Orbax's own way opens every array for it, of which some memory stays behind.
        told = json.loads((self.folder / str(round) / METADATA).read_text())["custom_metadata"]
        if told.pop("fingerprint") != hosts.fingerprint(json.dumps(told, sort_keys=True)):
            raise ValueError("what it says of itself is not what was saved")
        return told

    def _score(self, round: int) -> float | None:
        if round not in self._scores:
            try:
                self._scores[round] = self._told(round)["score"]
            except Exception:  # it is damaged, which whoever restores it will hear
                return None
        return self._scores[round]

    def _refuse_another(self, round: int, told: Mapping[str, Any], abstract: ServerState) -> None:
        """What is sound, but cannot be gone on from here."""
        where, was = f"checkpoint {self.folder / str(round)}", told["identity"]
        if was["num_classes"] != self._identity["num_classes"]:
            now = self._identity["num_classes"]
            raise UserError(f"{where} is of {was['num_classes']} classes, and the data has {now} now; {ANEW}")
        if was["data"] != self._identity["data"]:
            raise UserError(f"{where} is of other data: labels, or who holds which examples, differ; {ANEW}")
        if told["arrays"] != _dtypes(abstract) or was != self._identity:
            raise UserError(f"{where} was written by another version of this program or of JAX; go on with that")

    def _tell(self, damaged: Mapping[int, str], instead: int) -> None:
        self._damaged = list(damaged)
        for round, wrong in damaged.items():
            say(f"warning: checkpoint {self.folder / str(round)} is damaged ({wrong}); going on from round {instead}")

    def _changed(self, was: Mapping[str, Any]) -> list[str]:
        now = self._arrangement
        return [f"{name}: {was.get(name)} before, {now[name]} now" for name in now if was.get(name) != now[name]]

    def tidy(self) -> None:
        """By who is about to write, and is alone: what a killed writer has left goes, what is damaged is put aside."""
        if not hosts.is_first() or not self.folder.is_dir():
            return
        with writable(self.folder):
            for left in (*self.folder.glob("*.deleted"), *self.folder.glob("*orbax-checkpoint-tmp*")):
                shutil.rmtree(left, ignore_errors=True)
            for round in self._damaged:
                aside = self.folder / f"{round}.damaged"
                shutil.rmtree(aside, ignore_errors=True)
                (self.folder / str(round)).rename(aside)

    def _make_durable(self, round: int) -> None:
        """Orbax leaves it to the system when small files and folders get to the disk, and older ones go now."""
        checkpoint = self.folder / str(round)
        for path in (*(file for file in checkpoint.iterdir() if file.is_file()), checkpoint, self.folder):
            number = os.open(path, os.O_RDONLY)
            try:
                os.fsync(number)
            finally:
                os.close(number)

    def _delete_old(self) -> None:
        rounds = self.rounds()
        stay = {*rounds[-self._keep :], self.best()}
        for round in rounds:
            if round not in stay:
                # By another name first: who is killed now does not leave half a checkpoint.
                gone = self.folder / f"{round}.deleted"
                shutil.rmtree(gone, ignore_errors=True)
                shutil.rmtree((self.folder / str(round)).rename(gone), ignore_errors=True)
                self._scores.pop(round, None)

    def _failed(self, round: int, error: Exception) -> None:
        if hosts.is_first():
            for left in self.folder.glob(f"{round}.*tmp*"):  # which takes room that there is too little of
                shutil.rmtree(left, ignore_errors=True)
        rounds = self.rounds()
        last = f"the last good one is of round {rounds[-1]}" if rounds else "there is none yet"
        trouble = f"the checkpoint of round {round} cannot be written to {self.folder} ({_reason(error)}); {last}"
        # Several processes may not agree on what has failed: then they end, and start again from the last good one.
        if self._on_error == "stop" or jax.process_count() > 1:
            raise UserError(f"{trouble}; make room and start again, or --config.checkpoint.on_error=continue") from None
        say(f"warning: {trouble}")


def _flat(state: Any) -> dict[str, Any]:
    """Arrays by name, such as .rows.velocity: what Orbax makes of a tree's types does not matter then."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}


def _dtypes(state: Any) -> dict[str, str]:
    return {name: str(array.dtype) for name, array in _flat(state).items()}


def _reason(error: BaseException) -> str:
    """In a few words, of errors that may be pages long."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error)
    told = re.search(r"OS error[^:]*: ([^\[\n]+)", text) or re.search(r"^.*$", text, re.MULTILINE)
    line = (told[told.lastindex or 0] if told else "").strip() or type(error).__name__
    return line if len(line) <= 160 else line[:157] + "..."


def _is_shared(folder: Path) -> bool:
    """Whether all processes see the same folder: what process 0 has made there, the others must find."""
    if jax.process_count() == 1:
        return True
    token = hosts.of_first(int(np.random.default_rng().integers(2**31)))
    mark = folder / f".shared-{token}"
    if hosts.is_first():
        mark.touch()
    hosts.wait_for_all(f"mark-{token}")
    found = bool(hosts.least(int(mark.exists())))
    hosts.wait_for_all(f"unmark-{token}")
    if hosts.is_first():
        mark.unlink()
    if not found:
        say(f"warning: {folder} is not on a disk that all processes share: no checkpoints are written or read")
    return found
