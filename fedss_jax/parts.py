"""The parts that a config describes, each made from its own keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import ml_collections
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding

from fedss_jax import defence, feed, methods, models, packing, parallel, weights
from fedss_jax.client import LocalTraining
from fedss_jax.config import parse_options
from fedss_jax.defence import Clipping
from fedss_jax.evaluate import retrieval, top1
from fedss_jax.evaluate.embed import Embed
from fedss_jax.faults import Faults
from fedss_jax.rows import Layout
from fedss_jax.server import Server, make_optimizer, make_server
from fedss_jax.types import Dataset, Model, ServerState, Theta, UserError


def source_options(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """What config.data tells the source itself."""
    return {key: value for key, value in config.data.to_dict().items() if key not in ("name", "residency")}


def input_shape(dataset: Dataset) -> tuple[int, ...]:
    """Of one example, as the encoder sees it."""
    images = dataset.train.images
    return jax.eval_shape(dataset.transform.test, jax.ShapeDtypeStruct(images.shape[1:], images.dtype)).shape


def make_model(config: ml_collections.ConfigDict, dataset: Dataset, mesh: Mesh) -> Model:
    return models.create(
        config.model.name,
        image_shape=input_shape(dataset),
        dim=config.model.dim,
        dtype=config.model.dtype,
        options=config.model.options.to_dict(),
        platform=mesh.devices.flat[0].platform,
    )


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


def check_server(config: ml_collections.ConfigDict) -> None:
    """Whether optax has the optimizer."""
    if make_method(config).federated:
        server = config.server
        make_optimizer("server", server.optimizer, server.learning_rate, parse_options(server.options))


def shards_rows(config: ml_collections.ConfigDict, method: methods.Method, num_classes: int, mesh: Mesh) -> bool:
    """Whether W is spread over the devices.

    Where clients train all of it, that makes all devices work on the same clients: only if there is no other way.
    """
    if mesh.size == 1 or config.server.shard_rows == "no" or (method.every_row and not method.requests_all):
        return False
    if not method.requests_all or config.server.shard_rows == "yes":
        return True
    copies = 6  # W, its velocity and its update; at a client another W and its gradient; and one to spare
    return copies * num_classes * config.model.dim * 4 > feed.memory_of(mesh)


def most_lanes(config: ml_collections.ConfigDict, training: LocalTraining, mesh: Mesh) -> int:
    """Lanes that a device has room for. That matters where each has a W of its own."""
    if not training.method.requests_all:
        return packing.MOST_LANES
    share = training.num_classes if training.crew.groups(mesh) == mesh.size else training.num_classes / mesh.size
    copies = 3  # at a client: its W, the gradient, and one to spare
    room = feed.memory_of(mesh) / 2 / (copies * share * config.model.dim * 4)
    return int(np.clip(room, 1, packing.MOST_LANES))


def make_federated_server(config: ml_collections.ConfigDict, method: methods.Method, layout: Layout) -> Server:
    return make_server(
        layout,
        method,
        optimizer=config.server.optimizer,
        learning_rate=config.server.learning_rate,
        options=parse_options(config.server.options),
        row_weighting=config.server.row_weighting,
        clipping=Clipping(config.server.clip_norm, config.server.clip_quantile),
    )


def make_faults(config: ml_collections.ConfigDict) -> Faults:
    return Faults(**config.faults.to_dict(), deadline=config.deadline, over_selection=config.over_selection)


def fault_notes(config: ml_collections.ConfigDict, method: methods.Method) -> list[str]:
    """What to say of faults, and of what is done about them, before a run begins."""
    faults, server = make_faults(config), config.server
    clips = server.clip_norm or server.clip_quantile
    if not method.federated:
        lost = faults.loses_clients or faults.spoils_updates or clips
        return (
            [f"{config.method} has no clients: faults, deadline, over_selection and clipping do not apply"]
            if lost
            else []
        )
    if faults.scaled and not clips:
        return [
            f"{faults.scaled:.0%} of updates are sent times {faults.scale:g}, and nothing shortens them;"
            " --config.server.clip_quantile=0.8 does"
        ]
    return []


def make_centralized_server(
    config: ml_collections.ConfigDict, method: methods.Method, updates_per_round: int, layout: Layout
) -> Server:
    """Steps with the rate of a client, constant unless the config asks for a schedule."""
    rate, warmup = config.client.learning_rate, config.centralized.warmup
    total = config.rounds * updates_per_round
    if warmup >= total:
        raise UserError(f"centralized.warmup is {warmup}, but the run makes {total} updates; lower it")
    if config.centralized.cosine:
        rate = optax.warmup_cosine_decay_schedule(0.0, rate, warmup, total)
    elif warmup:
        rate = optax.linear_schedule(0.0, rate, warmup)
    return make_server(
        layout,
        method,
        optimizer=config.centralized.optimizer,
        learning_rate=rate,
        options=parse_options(config.centralized.options),
        section="centralized",
    )


def init_state(
    config: ml_collections.ConfigDict, model: Model, server: Server, key: jax.Array
) -> tuple[ServerState, list[str]]:
    """Random, or with the encoder of config.init_from; and what to say of it."""
    encoder_key, class_key = jax.random.split(key)
    encoder, notes = model.init(encoder_key), []
    if config.init_from:
        encoder, note = weights.load(config.init_from, encoder, head=config.init_from_head)
        notes = [f"the encoder starts from {config.init_from}" + (f"; {note}" if note else "")]
    class_matrix = server.rows.layout.init(class_key, config.model.dim, config.model.class_norm)
    return server.start(Theta(encoder, class_matrix)), notes


def make_evaluate(
    config: ml_collections.ConfigDict, embed: Embed, dataset: Dataset, server: Server, mesh: Mesh
) -> Callable[[ServerState], dict[str, float]]:
    """evaluate(state) -> scores on the test examples, and top-1 on (a sample of) the training examples."""
    count = min(config.eval.max_train_examples, len(dataset.train))
    sample = np.sort(np.random.default_rng(0).choice(len(dataset.train), count, replace=False))

    predict = top1.make_predict(server.rows)
    everywhere = NamedSharding(mesh, parallel.REPLICATED)

    is_finite = jax.jit(defence.is_finite, out_shardings=everywhere)

    def accuracy(state: ServerState, embeddings: np.ndarray, labels: np.ndarray) -> float:
        return top1.accuracy(predict(embeddings, state.rows, state.steps), labels)

    def evaluate(state: ServerState) -> dict[str, float]:
        if not is_finite((state.encoder, state.rows)):
            raise UserError(
                f"parameters are infinite or NaN after round {int(state.round)}; lower client.learning_rate, which is"
                f" {config.client.learning_rate}, or server.learning_rate, {config.server.learning_rate}"
            )
        test = embed(state.encoder, dataset.test.images, np.arange(len(dataset.test)))
        if dataset.task == "retrieval":
            found = retrieval.scores(test, dataset.test.labels)
            scores = {f"eval/{name}": value for name, value in found.items()}
        else:
            scores = {"eval/top1": accuracy(state, test, dataset.test.labels)}
        train = embed(state.encoder, dataset.train.images, sample)
        return scores | {"train/top1": accuracy(state, train, dataset.train.labels[sample])}

    return evaluate
