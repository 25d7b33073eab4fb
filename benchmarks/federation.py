"""Federations of made-up pictures in any sizes, and rounds of them that are ready to be timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedss_jax import centralized, class_matrix, losses, methods, models, packing, parallel
from fedss_jax.client import LocalTraining
from fedss_jax.data.augment import UNCHANGED
from fedss_jax.data.partition import make_population
from fedss_jax.round import Packing, Round, RoundStats, make_round
from fedss_jax.rows import Layout
from fedss_jax.server import Server, make_server
from fedss_jax.types import Clients, Dataset, Examples, Resident, ServerState, Theta

CLASSES = 100  # all classes are requested, so that a shared model has the same softmax


class Timed:
    """A program of one round, its state, and the seconds of each call."""

    def __init__(self, kind: Round, server: Server, theta: Theta, inputs: tuple[Any, ...]):
        self.state: ServerState = server.start(theta)
        self.inputs = inputs
        program: Any = kind.several(1, self.state)
        self.run: Callable[..., tuple[ServerState, RoundStats]]
        self.run = program.lower(jnp.int32(1), self.state, *inputs).compile()
        self.seconds: list[float] = []
        self.examples: list[int] = []
        self.slots: list[int] = []

    def once(self) -> None:
        tick = time.perf_counter()
        self.state, stats = self.run(jnp.int32(1), self.state, *self.inputs)
        loss = float(stats.loss[0])
        self.seconds.append(time.perf_counter() - tick)
        assert np.isfinite(loss)
        self.examples.append(int(stats.examples[0]))
        self.slots.append(int(stats.slots[0]))

    def per_example(self) -> float:
        """Seconds, the median over all calls but the first."""
        return float(np.median(np.array(self.seconds[1:]) / np.array(self.examples[1:])))

    def real_share(self) -> float:
        return sum(self.examples) / sum(self.slots)


class Encoder(NamedTuple):
    name: str
    image_shape: tuple[int, int, int]


SMALL = Encoder("small", (32, 32, 1))
MOBILENET = Encoder("mobilenet_v3_large", (224, 224, 3))


def population_of(sizes: np.ndarray, images: np.ndarray, labels: np.ndarray) -> Clients:
    """Clients of so many examples each, drawn from the given ones."""
    rng = np.random.default_rng(1)
    clients = [rng.integers(0, len(labels), size) for size in sizes]
    everything = Examples(images, labels)
    dataset = Dataset("pictures", "classification", CLASSES, everything, clients, everything, UNCHANGED)
    return make_population(dataset)[0]


def prepare(
    encoder: Encoder,
    sizes: np.ndarray,
    clients_per_round: int,
    *,
    batch_size: int = 32,
    part_size: int = 0,
    lanes: int = 0,
    shared: bool = False,
) -> tuple[Timed, int, int]:
    """A round of clients with weights of their own, or with `shared` one pass with the same weights for all, in batches
    of what is computed at a time; and the lanes and the size of the parts.
    """
    rng, pictures = np.random.default_rng(0), 512
    images = rng.integers(0, 256, (pictures, *encoder.image_shape), np.uint8)
    labels = rng.integers(0, CLASSES, pictures).astype(np.int32)
    population, mesh = population_of(sizes, images, labels), parallel.make_mesh()
    model = models.create(encoder.name, image_shape=encoder.image_shape, dim=64, dtype="float32", options={})
    part_size, lanes = packing.choose(
        sizes,
        models.count_effort(model, encoder.image_shape),
        batch_size=batch_size,
        epochs=1,
        clients_per_round=clients_per_round,
        devices=mesh.size,
        platform=jax.default_backend(),
        part_size=part_size,
        lanes=lanes,
    )
    method = methods.centralized() if shared else methods.fullsoftmax()
    logits = partial(losses.cosine_logits, scale=20.0)
    training = LocalTraining(model, method, UNCHANGED, 0.01, batch_size, 1, logits, CLASSES, part_size)
    theta = Theta(model.init(jax.random.key(0)), class_matrix.init(jax.random.key(1), CLASSES, 64, 1.0))
    layout = Layout(mesh, CLASSES, sharded=False)
    server = make_server(layout, method, learning_rate=0.01 if shared else 1.0, options={})
    if shared:
        at_a_time = lanes * part_size
        updates = round(clients_per_round * float(sizes.mean()) / at_a_time)
        training = LocalTraining(model, method, UNCHANGED, 0.01, at_a_time, 1, logits, CLASSES)
        kind = centralized.make_round(training, server, updates, mesh)
    else:
        kind = make_round(training, server, Packing(clients_per_round, lanes), mesh)
    inputs = (Resident(jnp.asarray(images)), jnp.asarray(labels), population, jax.random.key(2))
    return Timed(kind, server, theta, inputs), lanes, part_size
