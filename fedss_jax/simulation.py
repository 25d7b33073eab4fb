"""From a config to everything it describes, ready to run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from jax.sharding import Mesh

from fedss_jax import centralized, data, feed, hosts, models, packing, parallel, parts, weights
from fedss_jax.client import LocalTraining
from fedss_jax.config import check_population, check_room, fit_to_population, resolve
from fedss_jax.crew import Together
from fedss_jax.data.partition import make_population
from fedss_jax.defence import UNCLIPPED
from fedss_jax.evaluate.embed import Embed, make_embed
from fedss_jax.faults import NO_FAULTS, Faults
from fedss_jax.losses import cosine_logits
from fedss_jax.round import Packing, Round, draw_cohort, make_round
from fedss_jax.rows import Dense, Layout
from fedss_jax.server import Server
from fedss_jax.types import Clients, Dataset, Model, ServerState, Stored, Theta


class Setup(NamedTuple):
    """All that a config describes, with nothing on the devices yet."""

    config: ml_collections.ConfigDict  # resolved
    mesh: Mesh
    dataset: Dataset
    population: Clients
    clients_per_round: int
    residency: str  # where the training examples stay
    model: Model
    server: Server
    training: LocalTraining
    packing: Packing | None  # None: nobody is federated
    faults: Faults
    kind: Round
    embed: Embed
    init_key: jax.Array  # of the model
    root_key: jax.Array  # of everything else
    notes: list[str]  # worth telling before it begins

    @property
    def counts_clients(self) -> bool:
        """Whether what becomes of clients is worth telling, even if all goes well."""
        return self.faults != NO_FAULTS or self.server.clipping != UNCLIPPED

    def evaluate(self) -> Callable[[ServerState], dict[str, float]]:
        """A function of the state, to its scores."""
        return parts.make_evaluate(self.config, self.embed, self.dataset, self.server, self.mesh)

    @property
    def inputs(self) -> feed.Inputs:
        """What a round takes besides state and examples."""
        return self.dataset.train.labels, self.population, self.root_key

    @property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint must have been written with, to go on from it here."""
        dataset = self.dataset
        return {
            "num_classes": dataset.num_classes,
            "root_key": np.asarray(jax.random.key_data(self.root_key)).tolist(),
            "data": hosts.fingerprint(dataset.train.labels, *dataset.clients),
        }

    @property
    def arrangement(self) -> dict[str, Any]:
        """What numbers depend on in their last digits, as it sets the order of additions."""
        platform = self.mesh.devices.flat[0].platform
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return {
            "devices": f"{self.mesh.size} {platform}",
            "cores of a host": cores if platform == "cpu" else None,  # else they add nothing up
            "lanes": self.packing.lanes if self.packing else 0,
            "examples in a part": self.training.part_size,
            "W spread over devices": self.server.rows.layout.sharded,
        }

    @property
    def abstract_state(self) -> ServerState:
        """The server's state, as shapes and places."""
        encoder = jax.eval_shape(self.model.init, self.init_key)
        rows: Any = jax.ShapeDtypeStruct((self.server.rows.layout.num_rows, self.config.model.dim), jnp.float32)
        return self.server.abstract(Theta(encoder, rows))

    @property
    def abstract_stored(self) -> Stored:
        """A round's examples, as shapes and places."""
        return feed.abstract(self.dataset.train.images, self.residency, self.kind, self.inputs)


class Simulation(NamedTuple):
    setup: Setup
    feed: feed.Feed
    state: ServerState
    inputs: tuple[jax.Array, Clients, jax.Array]  # those of the setup, on the devices
    evaluate: Callable[[ServerState], dict[str, float]]


def prepare(config: ml_collections.ConfigDict, mesh: Mesh) -> Setup:
    """Checks the config and loads its data. Writes nothing but caches."""
    config = resolve(config)
    # Whatever can be wrong is found before pictures are decoded, which may take hours.
    parts.check_server(config)
    source = data.find(config.data.name, config.eval.split, parts.source_options(config))
    if config.init_from:
        weights.check(config.init_from)
    dataset = source()
    hosts.wait_for_all("data")
    hosts.check_same("a config", config.to_json(sort_keys=True), jax.__version__)
    hosts.check_same("data", dataset.num_classes, dataset.train.labels, dataset.test.labels, *dataset.clients)
    setup = set_up(config, dataset, mesh)
    check_room(config, memory_needs(setup), feed.memory_of(mesh))
    return setup


def memory_needs(setup: Setup) -> dict[str, float]:
    """Bytes on a device that single keys of the config ask for, at the least."""
    config, layout, dataset = setup.config, setup.server.rows.layout, setup.dataset
    encoder = 4.0 * models.count_parameters(setup.abstract_state.encoder)
    example = 4.0 * np.prod(parts.input_shape(dataset), dtype=float)
    stored = feed.size_in_bytes(dataset.train.images) / len(dataset.train)
    batch, updates = config.client.batch_size, config.centralized.updates_per_round
    needs = {
        "model.dim": 2 * 4.0 * layout.share * config.model.dim,  # W, and its change
        "model.options": 2 * encoder,
        "eval.batch_size": example * config.eval.batch_size / setup.mesh.size,
    }
    if setup.packing is None:
        streamed = updates * batch * stored if setup.residency != "device" else 0.0
        return needs | {"client.batch_size": example * batch, "centralized.updates_per_round": streamed}
    cut = "client.part_size" if config.client.part_size else "client.batch_size"
    return needs | {cut: example * setup.training.part_size * setup.packing.lanes}


def set_up(config: ml_collections.ConfigDict, dataset: Dataset, mesh: Mesh) -> Setup:
    """config: resolved. Of the data set's pictures only the shape is looked at."""
    population, empty_clients = make_population(dataset)
    fitted = fit_to_population(config, population, dataset.num_classes)
    method, clients_per_round = parts.make_method(fitted), fitted.clients_per_round
    check_population(fitted, method, population, dataset.num_classes)
    residency = feed.choose(config.data.residency, dataset.train.images, mesh)

    model = parts.make_model(config, dataset, mesh)
    training = LocalTraining(
        model=model,
        method=method,
        transform=dataset.transform,
        learning_rate=config.client.learning_rate,
        batch_size=config.client.batch_size,
        epochs=config.client.epochs,
        logits=partial(cosine_logits, scale=config.model.logit_scale),
        num_classes=dataset.num_classes,
    )
    init_key, root_key = jax.random.split(jax.random.key(config.seed))
    places, faults = None, NO_FAULTS
    if method.federated:
        layout = Layout(mesh, dataset.num_classes, parts.shards_rows(config, method, dataset.num_classes, mesh))
        if layout.sharded and method.requests_all:
            training = dataclasses.replace(training, crew=Together(layout))
        server = parts.make_federated_server(config, method, layout)
        effort = models.count_effort(model, parts.input_shape(dataset))
        faults = parts.make_faults(config)
        training, places = lay_out(fitted, training, effort, faults, population, root_key, residency, mesh)
        kind = make_round(training, server, places, mesh, faults)
    else:
        updates = config.centralized.updates_per_round
        updates = updates or centralized.updates_per_round(population, clients_per_round, training)
        server = parts.make_centralized_server(
            config, method, updates, Layout(mesh, dataset.num_classes, sharded=False)
        )
        kind = centralized.make_round(training, server, updates, mesh)

    notes = []
    if isinstance(server.rows, Dense) and not method.every_row:
        notes.append(
            f"optax.{config.server.optimizer} with these options moves all {dataset.num_classes:,} rows of W in every"
            " round; sgd with momentum moves only those that are asked for"
        )
    notes += parts.fault_notes(config, method)
    if empty_clients:
        notes.append(f"{empty_clients} clients hold no examples and were left out")
    return Setup(
        config=config,
        mesh=mesh,
        dataset=dataset,
        population=population,
        clients_per_round=clients_per_round,
        residency=residency,
        model=model,
        server=server,
        training=training,
        packing=places,
        faults=faults,
        kind=kind,
        embed=make_embed(model, dataset.transform, mesh, config.eval.batch_size),
        init_key=init_key,
        root_key=root_key,
        notes=notes,
    )


def build(config: ml_collections.ConfigDict, mesh: Mesh | None = None) -> Simulation:
    """Ready to run: model and data are on the devices, all that JAX finds unless a mesh is given."""
    setup = prepare(config, mesh or parallel.make_mesh())
    state, note = parts.init_state(setup.config, setup.model, setup.server, setup.init_key)
    return Simulation(
        setup=setup._replace(notes=[*note, *setup.notes]),
        feed=feed.make_feed(setup.dataset.train.images, setup.residency, setup.kind, setup.config.rounds, setup.inputs),
        state=state,
        inputs=parallel.replicate(setup.mesh, setup.inputs),
        evaluate=setup.evaluate(),
    )


def lay_out(
    config: ml_collections.ConfigDict,
    training: LocalTraining,
    effort: packing.Effort,
    faults: Faults,
    population: Clients,
    root: jax.Array,
    residency: str,
    mesh: Mesh,
) -> tuple[LocalTraining, Packing]:
    """How much of a batch is computed at a time, and where a round's clients are."""
    part_size, lanes = packing.choose(
        np.asarray(population.num_examples),
        effort,
        batch_size=training.batch_size,
        epochs=training.epochs,
        clients_per_round=config.clients_per_round,
        devices=training.crew.groups(mesh),
        platform=mesh.devices.flat[0].platform,
        part_size=config.client.part_size,
        lanes=config.clients_per_step,
        most_lanes=parts.most_lanes(config, training, mesh),
    )
    training = dataclasses.replace(training, part_size=part_size)
    layout = Packing(config.clients_per_round, lanes)
    if residency != "device":
        draw = partial(draw_cohort, training, layout, faults, mesh, population, root)
        layout = layout._replace(places=packing.most_places(jax.vmap(lambda r: draw(r).taken), config.rounds))
    return training, layout
