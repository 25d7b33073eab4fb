"""A run from config to summary, readable from top to bottom."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np
from jax.sharding import Mesh

from fedss_jax import centralized, class_matrix, data, methods, models, parallel
from fedss_jax.client import LocalTraining
from fedss_jax.config import check_population, parse_options, resolve
from fedss_jax.data.partition import make_population
from fedss_jax.evaluate import retrieval, top1
from fedss_jax.evaluate.embed import make_embed
from fedss_jax.metrics import Progress, Workdir, say
from fedss_jax.report import curves
from fedss_jax.report import summary as report
from fedss_jax.round import Round, RoundStats, make_round
from fedss_jax.server import Server, make_optimizer
from fedss_jax.types import Clients, Dataset, Model, ServerState, Store, Theta, UserError

ROUNDS_IN_FLIGHT = 8  # dispatched before their numbers are read, so that the device never waits for the host


class Simulation(NamedTuple):
    """Everything a config describes, ready to run."""

    config: ml_collections.ConfigDict  # resolved
    dataset: Dataset
    state: ServerState
    run_round: Round
    inputs: tuple[Store, Clients, jax.Array]  # what run_round takes besides the state
    evaluate: Callable[[Theta], dict[str, float]]
    empty_clients: int


def build(config: ml_collections.ConfigDict, mesh: Mesh | None = None) -> Simulation:
    """Checks the config, loads its data, puts model and data on the devices. Writes nothing."""
    config = resolve(config)
    mesh = mesh or parallel.make_mesh()
    method = make_method(config)
    dataset = data.load(config.data.name, config.eval.split, without_name(config.data))
    population, empty_clients = make_population(dataset)
    check_population(config, method, population, dataset.num_classes)

    model = models.create(
        config.model.name,
        image_shape=dataset.train.images.shape[1:],
        dim=config.model.dim,
        dtype=config.model.dtype,
        options=config.model.options.to_dict(),
    )
    training = LocalTraining(
        model=model,
        method=method,
        augment=dataset.augment,
        learning_rate=config.client.learning_rate,
        batch_size=config.client.batch_size,
        epochs=config.client.epochs,
        logit_scale=config.model.logit_scale,
        num_classes=dataset.num_classes,
    )
    if method.federated:
        server = Server(make_server_optimizer(config), method, config.server.row_weighting)
        run_round = make_round(training, server, config.clients_per_round, mesh)
    else:
        server = Server(make_optimizer("sgd", config.client.learning_rate, {}), method)
        updates = config.centralized.updates_per_round
        updates = updates or centralized.updates_per_round(population, config.clients_per_round, training)
        run_round = centralized.make_round(training, server, updates, mesh)

    init_key, root = jax.random.split(jax.random.key(config.seed))
    state = jax.jit(lambda key: server.init(init_theta(config, model, dataset, key)))(init_key)
    store = Store(*parallel.replicate(mesh, (dataset.train.images, dataset.train.labels)))
    return Simulation(
        config=config,
        dataset=dataset,
        state=parallel.replicate(mesh, state),
        run_round=run_round,
        inputs=(store, *parallel.replicate(mesh, (population, root))),
        evaluate=make_evaluate(config, model, dataset, mesh),
        empty_clients=empty_clients,
    )


def without_name(options: ml_collections.ConfigDict) -> dict[str, Any]:
    return {key: value for key, value in options.to_dict().items() if key != "name"}


def make_method(config: ml_collections.ConfigDict) -> methods.Method:
    return methods.create(
        config.method,
        {
            "num_negatives": config.num_negatives,
            "extra_negatives": config.extra_negatives,
            "correct_logits": config.correct_logits,
            "margin": config.fedaws.margin,
            "spreadout_step": config.fedaws.weight * config.server.learning_rate,
            "neighbours": config.fedaws.neighbours,
            "touched_only": config.fedaws.touched_only,
        },
    )


def make_server_optimizer(config: ml_collections.ConfigDict) -> Any:
    options = parse_options(config.server.options)
    return make_optimizer(config.server.optimizer, config.server.learning_rate, options)


def init_theta(config: ml_collections.ConfigDict, model: Model, dataset: Dataset, key: jax.Array) -> Theta:
    encoder_key, class_key = jax.random.split(key)
    rows = class_matrix.init(class_key, dataset.num_classes, config.model.dim, config.model.class_norm)
    return Theta(model.init(encoder_key), rows)


def make_evaluate(
    config: ml_collections.ConfigDict, model: Model, dataset: Dataset, mesh: Mesh
) -> Callable[[Theta], dict[str, float]]:
    """evaluate(theta) -> scores on the test examples, and top-1 on (a sample of) the training examples."""
    embed = make_embed(model, mesh, config.eval.batch_size)
    count = min(config.eval.max_train_examples, len(dataset.train))
    sample = np.sort(np.random.default_rng(0).choice(len(dataset.train), count, replace=False))
    train_images, train_labels = dataset.train.images[sample], dataset.train.labels[sample]

    def evaluate(theta: Theta) -> dict[str, float]:
        test = embed(theta.encoder, dataset.test.images)
        if dataset.task == "retrieval":
            found = retrieval.scores(test, dataset.test.labels)
            scores = {f"eval/{name}": value for name, value in found.items()}
        else:
            scores = {"eval/top1": top1.accuracy(test, theta.class_matrix, dataset.test.labels)}
        train = embed(theta.encoder, train_images)
        return scores | {"train/top1": top1.accuracy(train, theta.class_matrix, train_labels)}

    return evaluate


def round_scalars(stats: RoundStats, encoder_parameters: int, dim: int) -> dict[str, float]:
    """A round's sums as means; bytes are of float32 parameters, for a mean client."""
    scalars = {"train/loss": float(stats.loss / stats.examples)}
    clients = int(stats.clients)
    if clients:  # nothing travels where nobody is federated
        rows = int(stats.requested) / clients
        sent = 4.0 * (encoder_parameters + rows * dim)
        scalars |= {"comm/classes": rows, "comm/bytes_down": sent, "comm/bytes_up": sent}
    return scalars


def stop_if_diverged(read: Sequence[tuple[int, dict[str, float]]], config: ml_collections.ConfigDict) -> None:
    for round, scalars in read:
        if not np.isfinite(scalars["train/loss"]):
            raise UserError(
                f"the training loss of round {round} is {scalars['train/loss']};"
                f" lower client.learning_rate, which is {config.client.learning_rate}"
            )


def train(config: ml_collections.ConfigDict, workdir: str) -> dict[str, Any]:
    """Runs the config and returns its summary. The folder gets all that the run leaves behind."""
    began = time.perf_counter()
    simulation = build(config)
    config, dataset = simulation.config, simulation.dataset
    encoder_parameters = models.count_parameters(simulation.state.theta.encoder)
    describe(simulation, encoder_parameters)

    compile_began = time.perf_counter()
    state, inputs = simulation.state, simulation.inputs
    traced = simulation.run_round.lower(state, *inputs)  # type: ignore[attr-defined]
    folder = Workdir(workdir, config.to_dict())  # only now: what cannot run leaves nothing behind
    say("compiling the round")
    # Ahead of time, once: a call that would need another compilation is an error.
    run_round = traced.compile()
    compile_seconds = time.perf_counter() - compile_began

    start = simulation.evaluate(state.theta)
    folder.write(0, start)
    progress = Progress(config.rounds, config.eval.every)
    progress.update(0, start)

    pending: list[tuple[int, RoundStats]] = []
    sent: list[float] = []  # bytes a mean client receives and sends, round by round
    training_seconds, tick = 0.0, time.perf_counter()
    for round in range(1, config.rounds + 1):
        state, stats = run_round(state, *inputs)
        pending.append((round, stats))
        evaluating = round % config.eval.every == 0 or round == config.rounds
        if not evaluating and len(pending) < ROUNDS_IN_FLIGHT:
            continue
        read = [(r, round_scalars(s, encoder_parameters, config.model.dim)) for r, s in pending]
        pending.clear()
        stop_if_diverged(read, config)
        sent.extend(scalars.get("comm/bytes_down", 0.0) + scalars.get("comm/bytes_up", 0.0) for _, scalars in read)
        training_seconds += time.perf_counter() - tick
        if evaluating:
            read[-1][1].update(simulation.evaluate(state.theta))
        for r, scalars in read:
            folder.write(r, scalars)
            progress.update(r, scalars)
        tick = time.perf_counter()
    progress.close()

    summary = {
        "method": config.method,
        "rounds": config.rounds,
        "seed": config.seed,
        "num_classes": dataset.num_classes,
        "encoder_parameters": encoder_parameters,
        "start": start,
        "final": read[-1][1],
        "seconds": time.perf_counter() - began,
        "seconds_compiling": compile_seconds,
        "seconds_training": training_seconds,
        "rounds_per_second": config.rounds / training_seconds,
        "bytes_per_client_per_round": float(np.mean(sent)),
        "empty_clients": simulation.empty_clients,
    }
    folder.finish(summary)
    picture = curves.draw(folder.path, f"{config.method} on {dataset.name} ({dataset.task})")
    say(f"\n{report.table(summary)}\n\n{report.costs(summary, config.model.dim)}")
    say(f"{picture} shows the curves; {folder.path} has config.json, metrics.jsonl and summary.json")
    return summary


def describe(simulation: Simulation, encoder_parameters: int) -> None:
    config, dataset, (_, population, _) = simulation.config, simulation.dataset, simulation.inputs
    clients = len(population.client_id)
    say(
        f"{config.method} on {dataset.name} ({dataset.task}): {len(dataset.train):,} images of"
        f" {dataset.num_classes:,} classes at {clients:,} clients, {config.clients_per_round} a round;"
        f" {len(dataset.test):,} {config.eval.split} images; encoder of {encoder_parameters:,} parameters;"
        f" {jax.device_count()} {jax.default_backend()} device(s)"
    )
    if simulation.empty_clients:
        say(f"{simulation.empty_clients} clients hold no examples and were left out")
