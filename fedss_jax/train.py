"""A run from config to summary, readable from top to bottom."""

from __future__ import annotations

import time
from typing import Any

import jax
import ml_collections
import numpy as np

from fedss_jax import command_line, hosts, models, weights
from fedss_jax.analysis import findings
from fedss_jax.boards import check_wandb
from fedss_jax.dispatch import Dispatcher, compile_rounds
from fedss_jax.evaluate.class_rows import class_matrix
from fedss_jax.evaluate.embed import make_embed
from fedss_jax.feed import size_in_bytes
from fedss_jax.metrics import Progress, Workdir, say
from fedss_jax.report import curves, run_page
from fedss_jax.report import summary as report
from fedss_jax.round import RoundStats
from fedss_jax.simulation import Setup, build
from fedss_jax.types import UserError

FILES = ("config.json", "metrics.jsonl", "summary.json", "curves.png", "encoder.safetensors", "class_matrix.npy")


def round_scalars(stats: RoundStats, encoder_parameters: int, dim: int) -> dict[str, float]:
    """A round's sums as means; bytes are of float32 parameters, for a mean client."""
    scalars = {"train/loss": float(stats.loss / stats.examples)}
    clients = int(stats.clients)
    if clients:  # nothing travels where nobody is federated
        rows = int(stats.requested) / clients
        sent = 4.0 * (encoder_parameters + rows * dim)
        scalars |= {"comm/classes": rows, "comm/bytes_down": sent, "comm/bytes_up": sent}
    return scalars


def stop_if_diverged(round: int, loss: float, learning_rate: float) -> None:
    if not np.isfinite(loss):
        raise UserError(
            f"the training loss of round {round} is {loss}; lower client.learning_rate, which is {learning_rate}"
        )


def evaluated_rounds(rounds: int, every: int) -> list[int]:
    """Every so many rounds, and at the end."""
    return [*range(every, rounds, every), rounds]


def train(config: ml_collections.ConfigDict, workdir: str) -> dict[str, Any]:
    """Runs the config and returns its summary. The folder gets all that the run leaves behind."""
    began = time.perf_counter()
    check_wandb(config.wandb)
    simulation = build(config)
    setup = simulation.setup
    config, dataset = setup.config, setup.dataset
    encoder_parameters = models.count_parameters(simulation.state.encoder)
    describe(setup, encoder_parameters)

    compile_began = time.perf_counter()
    state, inputs = simulation.state, simulation.inputs
    compile_traced = compile_rounds(setup.kind, state, setup.abstract_stored, inputs, config.rounds_per_dispatch)
    # Only now: what cannot run leaves nothing behind.
    folder = Workdir(workdir, config.to_dict(), config.wandb, writes=hosts.is_first())
    say("compiling the round")
    run = compile_traced()
    compile_seconds = time.perf_counter() - compile_began

    start = simulation.evaluate(state)
    folder.write(0, start)
    progress = Progress(config.rounds, config.eval.every)
    progress.update(0, start)

    sent: list[float] = []  # bytes a mean client receives and sends, round by round
    examples = slots = 0
    training_seconds, tick = 0.0, time.perf_counter()
    with simulation.feed as feed:
        dispatcher = Dispatcher(run, state, feed, inputs, config.rounds_per_dispatch)
        for until in evaluated_rounds(config.rounds, config.eval.every):
            for round, stats in dispatcher.run_to(until):
                scalars = round_scalars(stats, encoder_parameters, config.model.dim)
                stop_if_diverged(round, scalars["train/loss"], config.client.learning_rate)
                sent.append(scalars.get("comm/bytes_down", 0.0) + scalars.get("comm/bytes_up", 0.0))
                examples, slots = examples + int(stats.examples), slots + int(stats.slots)
                if round == until:
                    training_seconds += time.perf_counter() - tick
                    scalars |= simulation.evaluate(dispatcher.state)
                    tick = time.perf_counter()
                folder.write(round, scalars)
                progress.update(round, scalars)
    progress.close()

    trained = dispatcher.state
    if folder.writes:
        weights.save(folder.path / "encoder.safetensors", trained.encoder)
    # By all processes, as the devices of all take part; then one of them writes.
    learnt = class_matrix(setup.server.rows, trained.rows, trained.round)
    embed = make_embed(setup.model, dataset.transform, setup.mesh, config.eval.batch_size)
    found = findings.find(dataset, lambda images, rows: embed(trained.encoder, images, rows), learnt)
    summary = {
        "command": command_line.typed(),
        "method": config.method,
        "dataset": dataset.name,
        "task": dataset.task,
        "rounds": config.rounds,
        "seed": config.seed,
        "num_classes": dataset.num_classes,
        "encoder_parameters": encoder_parameters,
        "dim": config.model.dim,
        "start": start,
        "final": scalars,
        "residency": setup.residency,
        "devices": f"{jax.device_count()} {jax.default_backend()}",
        "jax": jax.__version__,
        "seconds": time.perf_counter() - began,
        "seconds_compiling": compile_seconds,
        "seconds_training": training_seconds,
        "seconds_waiting_for_data": dispatcher.seconds_waiting_for_data,
        "rounds_per_second": config.rounds / training_seconds,
        "real_share_of_slots": examples / slots,
        "bytes_per_client_per_round": float(np.mean(sent)),
    }
    if folder.writes:
        np.save(folder.path / "class_matrix.npy", learnt)
        findings.write(folder.path, found, dataset.test.images)
        leave(folder, setup, summary)
    return summary


def leave(folder: Workdir, setup: Setup, summary: dict[str, Any]) -> None:
    """The summary, the page, and the last words on a run."""
    config, dataset = setup.config, setup.dataset
    folder.finish(summary)
    curves.draw(folder.path, f"{config.method} on {dataset.name} ({dataset.task})")
    page = run_page.write(folder.path)
    say(f"\n{report.table(summary)}\n\n{report.costs(summary, config.model.dim)}")
    say(f"{page} shows it all; {folder.path} also has {', '.join(FILES)}")


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
