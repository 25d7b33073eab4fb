"""A run from config to summary, readable from top to bottom."""

from __future__ import annotations

import dataclasses
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import ml_collections
import numpy as np

from fedss_jax import command_line, hosts, models, weights
from fedss_jax.analysis import findings
from fedss_jax.boards import check_wandb
from fedss_jax.checkpoint import Checkpoints
from fedss_jax.command_line import to_go_on
from fedss_jax.config import fit_to_population, may_change, resolve
from fedss_jax.digest import digest
from fedss_jax.dispatch import IN_FLIGHT, Dispatcher, compile_rounds
from fedss_jax.evaluate.class_rows import class_matrix
from fedss_jax.feed import size_in_bytes
from fedss_jax.interrupt import Interruption
from fedss_jax.metrics import SHOWN, Progress, Workdir, finished_run, refuse_fewer_rounds, say, writable
from fedss_jax.report import curves, run_page
from fedss_jax.report import summary as report
from fedss_jax.report.render import PAGE
from fedss_jax.round import RoundStats
from fedss_jax.simulation import Setup, Simulation, build
from fedss_jax.types import ServerState, UserError

FILES = ("config.json", "metrics.jsonl", "summary.json", "curves.png", "encoder.safetensors", "class_matrix.npy")


def round_scalars(stats: RoundStats, encoder_parameters: int, dim: int, counts: bool = False) -> dict[str, float]:
    """A round's sums as means; bytes are of float32 parameters, for a mean client of those that were chosen.

    Without anybody's update there is no loss. counts: whether to say what became of the clients where all went well.
    """
    scalars = {"train/loss": float(stats.loss / stats.counted)} if stats.counted else {}
    clients = stats.clients
    if counts or not stats.steps or (clients is not None and clients.non_finite):
        scalars["server/steps"] = int(stats.steps)
    if clients is None:  # nothing travels where nobody is federated
        return scalars
    chosen, reported = int(clients.chosen), int(clients.reported)
    down, up = int(clients.received) / chosen, int(clients.returned) / chosen
    scalars |= {
        "comm/classes": down,
        "comm/bytes_down": 4.0 * (encoder_parameters + down * dim),
        "comm/bytes_up": 4.0 * (encoder_parameters * (reported / chosen) + up * dim),
    }
    if clients.counted:
        scalars["clients/update_norm"] = float(clients.norm)
    if "server/steps" in scalars:
        for name in ("chosen", "dropped", "late", "non_finite", "clipped", "counted"):
            scalars[f"clients/{name}"] = int(getattr(clients, name))
    if clients.bound:
        scalars["server/clip_norm"] = float(clients.bound)
    return scalars


def stop_if_diverged(round: int, stats: RoundStats, learning_rate: float, spoilt: bool) -> None:
    """If the loss is not a number, or nobody's update is, or no step can be taken, without anybody having spoilt it.

    spoilt: whether clients of this run send what they should not.
    """
    clients, loss = stats.clients, float(stats.loss)
    if clients is not None and clients.broken and not clients.counted:
        loss = float("nan")
    if not np.isfinite(loss):
        raise UserError(
            f"the training loss of round {round} is {loss}; lower client.learning_rate, which is {learning_rate}"
        )
    if stats.counted and not stats.steps and not spoilt:
        raise UserError(
            f"the server cannot take the step of round {round}, after which the model would not be finite; lower the"
            f" learning rates (client.learning_rate is {learning_rate}) or change the optimizer's options"
        )


@dataclasses.dataclass
class SoFar:
    """What is known of a run's rounds, those before an interruption included. A checkpoint keeps it."""

    start: dict[str, float]  # scores before the first round
    last: dict[str, float]  # scalars of the last round
    examples: int = 0
    slots: int = 0
    communication: dict[str, float] = dataclasses.field(default_factory=dict)  # comm/... of all rounds, summed
    seconds: float = 0.0
    seconds_compiling: float = 0.0
    seconds_training: float = 0.0
    seconds_waiting_for_data: float = 0.0

    def add(self, stats: RoundStats, scalars: dict[str, float]) -> None:
        self.last = scalars
        self.examples += int(stats.examples)
        self.slots += int(stats.slots)
        for name in (name for name in scalars if name.startswith("comm/")):
            self.communication[name] = self.communication.get(name, 0.0) + scalars[name]

    @property
    def score(self) -> float | None:
        """By which the best checkpoint is chosen, if the last round was evaluated."""
        return next((self.last[name] for name in SHOWN if name in self.last), None)


def every(cadence: int, rounds: int) -> set[int]:
    """Rounds with something that is due every so many, and at the end; 0: only at the end."""
    return {*(range(cadence, rounds, cadence) if cadence else ()), rounds}


def train(config: ml_collections.ConfigDict, workdir: str) -> dict[str, Any]:
    """Runs the config, or what is left of it, and returns its summary. The folder gets all that the run leaves behind.

    A signal ends it by SystemExit, with all that was done saved.
    """
    config = resolve(config)
    check_wandb(config.wandb)
    if (summary := finished_already(config, Path(workdir))) is not None:
        return summary
    began = time.perf_counter()
    simulation = build(config)
    setup, inputs = simulation.setup, simulation.inputs
    config = setup.config
    encoder_parameters = models.count_parameters(simulation.state.encoder)
    describe(setup, encoder_parameters)

    compile_began = time.perf_counter()
    compile_traced = compile_rounds(
        setup.kind, simulation.state, setup.abstract_stored, inputs, config.rounds_per_dispatch
    )
    # Only now: what cannot run leaves nothing behind.
    with (
        Workdir(workdir, config.to_dict(), config.wandb, hosts.is_first(), may_change(config)) as folder,
        Checkpoints(
            folder.path / "checkpoints",
            setup.server.rows.layout,
            setup.identity,
            setup.arrangement,
            keep=config.checkpoint.keep,
            on_error=config.checkpoint.on_error,
        ) as checkpoints,
        Interruption() as interruption,
    ):
        say("compiling the round")
        run = compile_traced()
        compile_seconds = time.perf_counter() - compile_began

        state, done, so_far = begin(simulation, folder, checkpoints)
        began -= so_far.seconds
        so_far.seconds_compiling += compile_seconds
        progress = Progress(config.rounds, config.eval.every)
        progress.update(done, so_far.last)

        evaluated = every(config.eval.every, config.rounds)
        saved = every(config.checkpoint.every, config.rounds)
        with simulation.feed as feed:
            stop = hosts.Stop(interruption.came, IN_FLIGHT)
            dispatcher = Dispatcher(run, state, feed, inputs, config.rounds_per_dispatch, done=done, stop=stop)
            dispatcher.seconds_waiting_for_data = so_far.seconds_waiting_for_data
            for until in sorted(round for round in evaluated | saved if round > done):
                tick = time.perf_counter()
                for done, stats in dispatcher.run_to(until):
                    stop_if_diverged(done, stats, config.client.learning_rate, setup.faults.spoils_updates)
                    scalars = round_scalars(stats, encoder_parameters, config.model.dim, setup.counts_clients)
                    so_far.add(stats, scalars)
                    if done in evaluated:
                        so_far.seconds_training += time.perf_counter() - tick
                        scalars |= simulation.evaluate(dispatcher.state)
                        tick = time.perf_counter()
                    folder.write(done, scalars)
                    progress.update(done, scalars)
                so_far.seconds_training += time.perf_counter() - tick
                so_far.seconds = time.perf_counter() - began
                so_far.seconds_waiting_for_data = dispatcher.seconds_waiting_for_data
                if done in saved or dispatcher.stopped:
                    checkpoints.save(done, dispatcher.state, so_far.score, dataclasses.asdict(so_far), folder.sync)
                if dispatcher.stopped:
                    progress.close()
                    stop_here(done, config.rounds, checkpoints, workdir, interruption.exit_code)
        progress.close()
        return finish(setup, dispatcher.state, folder, checkpoints, so_far, encoder_parameters, began)


def begin(simulation: Simulation, folder: Workdir, checkpoints: Checkpoints) -> tuple[ServerState, int, SoFar]:
    """Where the run in the folder was, or at the start: the state, the rounds that are done, and what is known."""
    rounds = simulation.setup.config.rounds
    if not checkpoints.rounds():
        refuse_to_lose(folder)
        checkpoints.tidy()
        folder.begin()
        start = simulation.evaluate(simulation.state)
        folder.write(0, start)
        return simulation.state, 0, SoFar(start, start)
    jax.tree.map(lambda array: array.delete(), simulation.state)  # there may be no room for two
    found = checkpoints.restore(simulation.setup.abstract_state)
    if found.round > rounds:
        refuse_fewer_rounds(folder.path, rounds, found.round)
    checkpoints.tidy()
    folder.begin(found.round)
    say(f"going on after round {found.round} of {rounds}, from {checkpoints.folder / str(found.round)}")
    if found.changed:
        say(f"from here on the numbers are the same up to rounding only ({'; '.join(found.changed)})")
    return found.state, found.round, SoFar(**found.about)


def refuse_to_lose(folder: Workdir) -> None:
    """A run that is finished, and of which no checkpoint is left to go on from, does not begin anew by itself."""
    if folder.writes and (folder.path / "summary.json").exists():
        raise UserError(
            f"the run in {folder.path} is finished and has no checkpoint to go on from; choose another folder with"
            " --workdir, or delete it to start anew"
        )


def stop_here(done: int, rounds: int, checkpoints: Checkpoints, workdir: str, exit_code: int) -> None:
    checkpoints.wait()
    saved = max(checkpoints.rounds(), default=0)
    say(f"stopped after round {done} of {rounds}; saved up to round {saved}. To go on:\n{to_go_on(workdir)}")
    raise SystemExit(exit_code)


def finished_already(config: ml_collections.ConfigDict, path: Path) -> dict[str, Any] | None:
    """The summary, and a word on it, if there is nothing left to do. config: resolved."""
    summary = finished_run(path, config.to_dict(), may_change(config)) if hosts.is_first() else None
    if not hosts.of_first(summary is not None):
        return None
    if summary:
        if not (path / PAGE).exists():  # it was ended just before
            with writable(path):
                draw(path, summary)
        leave(path, summary)
    say(f"the run in {path} is finished; raise rounds to go on, or delete the folder to start anew")
    return summary or {}


def finish(
    setup: Setup,
    trained: ServerState,
    folder: Workdir,
    checkpoints: Checkpoints,
    so_far: SoFar,
    encoder_parameters: int,
    began: float,
) -> dict[str, Any]:
    """What is left behind of a run whose rounds are done."""
    config, dataset = setup.config, setup.dataset
    checkpoints.wait()
    # By all processes, as the devices of all take part; then one of them writes.
    learnt = class_matrix(setup.server.rows, trained.rows, trained.steps)
    if folder.writes:
        with writable(folder.path):
            weights.save(folder.path / "encoder.safetensors", trained.encoder)
            np.save(folder.path / "class_matrix.npy", learnt)
    found = findings.find(dataset, partial(setup.embed, trained.encoder), learnt)
    summary = {
        "command": command_line.typed(),
        "method": config.method,
        "dataset": dataset.name,
        "task": dataset.task,
        "rounds": config.rounds,
        "seed": config.seed,
        "split": config.eval.split,
        "num_negatives": fit_to_population(config, setup.population, dataset.num_classes).num_negatives,
        "num_classes": dataset.num_classes,
        "encoder_parameters": encoder_parameters,
        "dim": config.model.dim,
        "start": so_far.start,
        "final": so_far.last,
        "state_digest": digest(setup.server.rows.layout, trained),
        "residency": setup.residency,
        "devices": f"{jax.device_count()} {jax.default_backend()}",
        "jax": jax.__version__,
        "seconds": time.perf_counter() - began,
        "seconds_compiling": so_far.seconds_compiling,
        "seconds_training": so_far.seconds_training,
        "seconds_waiting_for_data": so_far.seconds_waiting_for_data,
        "rounds_per_second": config.rounds / so_far.seconds_training,
        "real_share_of_slots": so_far.examples / max(so_far.slots, 1),
        # Of a mean client in a mean round; nothing where nobody is federated.
        "communication": {name: total / config.rounds for name, total in so_far.communication.items()},
    }
    if folder.writes:
        with writable(folder.path):
            findings.write(folder.path, found, dataset.test.images)
            folder.finish(summary)
            draw(folder.path, summary)
        leave(folder.path, summary)
    return summary


def draw(folder: Path, summary: dict[str, Any]) -> None:
    """What can be looked at, from what is written already."""
    curves.draw(folder, f"{summary['method']} on {summary['dataset']} ({summary['task']})")
    run_page.write(folder)


def leave(folder: Path, summary: dict[str, Any]) -> None:
    """The last words on a run."""
    say(f"\n{report.table(summary)}\n\n{report.costs(summary, summary['dim'])}")
    if told := report.attendance(curves.read(folder)):
        say(told)
    say(f"{folder / PAGE} shows it all; {folder} also has {', '.join(FILES)}")


def describe(setup: Setup, encoder_parameters: int) -> None:
    config, dataset = setup.config, setup.dataset
    processes = f" of {jax.process_count()} processes" if jax.process_count() > 1 else ""
    clients, images = len(setup.population.client_id), dataset.train.images
    say(
        f"{config.method} on {dataset.name} ({dataset.task}): {len(dataset.train):,} images of"
        f" {dataset.num_classes:,} classes at {clients:,} clients, {setup.clients_per_round} a round;"
        f" {len(dataset.test):,} {config.eval.split} images; encoder of {encoder_parameters:,} parameters;"
        f" {jax.device_count()} {jax.default_backend()} device(s){processes};"
        f" training images ({size_in_bytes(images) / 1e9:,.2f} GB) from: {setup.residency}"
    )
    for note in setup.notes:
        say(note)
