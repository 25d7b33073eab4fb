"""One client's round: what it draws before it begins, and a step of its local SGD.

Written for a single client; round.py runs many.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedss_jax import sampling
from fedss_jax.class_matrix import Request
from fedss_jax.crew import ALONE, Crew
from fedss_jax.methods import Method
from fedss_jax.types import Clients, Model, Stored, Theta, Transform

NEGATIVES, SHUFFLE, AUGMENT, FAULTS = range(4)  # a client's key splits into one for each use


@dataclasses.dataclass(frozen=True)
class LocalTraining:
    """What every client is told to do.

    A batch is computed in parts of `part_size` examples, which divides batch_size; the model moves when the batch is
    whole. Parts are for clients of unequal length: of a last, partial batch only the parts that hold examples are
    computed.
    """

    model: Model
    method: Method
    transform: Transform
    learning_rate: float
    batch_size: int
    epochs: int
    logits: Callable[[jax.Array, jax.Array], jax.Array]  # embeddings [B, d], rows of W [S, d] -> [B, S]
    num_classes: int
    part_size: int = 0  # 0: the whole batch
    crew: Crew = ALONE

    @property
    def cuts_batches(self) -> bool:
        return 0 < self.part_size < self.batch_size

    def parts_of(self, max_examples: int) -> tuple[int, int]:
        """Examples a part, where no client has more than so many; and parts a batch."""
        size = self.part_size or self.batch_size
        return min(size, max_examples), self.batch_size // size


class Work(NamedTuple):
    """A client and what it has drawn for this round. Or [K, ...], a cohort."""

    client: Clients
    request: Request
    order: jax.Array  # [epochs, parts, B] places in the client's `examples`, in the order in which they are seen
    augment_key: jax.Array  # []
    place: jax.Array  # [] of its first example, where examples are streamed
    spoilt: jax.Array | None = None  # [] what its update is multiplied by before it is sent; None: nobody's is

    def of(self, client: jax.Array) -> Work:
        """Of a cohort, one client."""
        return jax.tree.map(lambda field: field[client], self)


class Local(NamedTuple):
    """What a client has while it trains."""

    theta: Theta  # phi, and the rows that it asked for
    gradient: Theta | None  # summed over the parts of a batch so far; None if a part is a batch
    loss: jax.Array  # [] summed over all examples seen so far


class Batch(NamedTuple):
    images: jax.Array  # [B, H, W, C]; with a crew, just those that this device embeds
    labels: jax.Array  # [B]
    weights: jax.Array  # [B] 1, or 0 for padding


def batch_loss(training: LocalTraining, theta: Theta, request: Request, batch: Batch) -> jax.Array:
    """Summed loss of a batch under a method's softmax. []"""
    embeddings = training.model.embed(theta.encoder, batch.images)
    each = training.crew.softmax(
        embeddings, theta.class_matrix, training.logits, request, training.method.competes, batch.labels
    )
    return jnp.sum(each * batch.weights)


def prepare(training: LocalTraining, client: Clients, key: jax.Array, place: jax.Array) -> Work:
    """The client's draws: its negatives, and for every epoch an order of its examples."""
    request = training.method.request(jax.random.fold_in(key, NEGATIVES), client, training.num_classes)
    shuffle_key, augment_key = (jax.random.fold_in(key, use) for use in (SHUFFLE, AUGMENT))
    max_examples = client.examples.shape[0]
    size, _ = training.parts_of(max_examples)

    def one_epoch(epoch: jax.Array) -> jax.Array:
        order = sampling.shuffled(jax.random.fold_in(shuffle_key, epoch), client.num_examples, max_examples)
        return jnp.pad(order, (0, -max_examples % size)).reshape(-1, size)

    order = jax.vmap(one_epoch)(jnp.arange(training.epochs))
    return Work(client, request, order, augment_key, place)


def parts_an_epoch(training: LocalTraining, clients: Clients) -> jax.Array:
    size, _ = training.parts_of(clients.examples.shape[-1])
    return -(-clients.num_examples // size)


def start(training: LocalTraining, received: Theta) -> Local:
    """The client receives phi and its rows of W."""
    gradient = jax.tree.map(jnp.zeros_like, received) if training.cuts_batches else None
    return Local(received, gradient, jnp.zeros_like(received.class_matrix, shape=()))


def step(
    training: LocalTraining,
    stored: Stored,
    labels: jax.Array,
    work: Work,
    local: Local,
    index: jax.Array,
    is_there: jax.Array,
) -> Local:
    """Step `index` of the client's local SGD: one part of a batch. Without the client being there, nothing changes.

    labels [N] are those of all stored examples.
    """
    client = work.client
    size, batch_parts = training.parts_of(client.examples.shape[0])
    epoch_parts = jnp.maximum(parts_an_epoch(training, client), 1)
    epoch, part = index // epoch_parts, index % epoch_parts
    is_real = (part * size + jnp.arange(size) < client.num_examples) & is_there
    slots = jnp.where(is_real, work.order[epoch, part], 0)

    fill = training.crew.padded(size) - size
    is_real, slots = jnp.pad(is_real, (0, fill)), jnp.pad(slots, (0, fill))
    own = training.crew.own(slots)
    epoch_key = jax.random.fold_in(work.augment_key, epoch)
    keys = jax.vmap(lambda slot: jax.random.fold_in(epoch_key, slot))(own)
    images = jax.vmap(training.transform.train)(keys, stored.take(client.examples[own], work.place + own))
    batch = Batch(images, labels[client.examples[slots]], is_real.astype(jnp.float32))
    loss, gradient = jax.value_and_grad(lambda theta: batch_loss(training, theta, work.request, batch))(local.theta)
    gradient = training.crew.total(gradient)

    # The mean over the batch's real examples; a step without any leaves the sub-model as it is.
    in_batch = jnp.clip(client.num_examples - part // batch_parts * training.batch_size, 1, training.batch_size)
    rate = training.learning_rate / in_batch
    if local.gradient is not None:
        ends = ((part + 1) % batch_parts == 0) | (part + 1 == epoch_parts)
        gradient = jax.tree.map(jnp.add, local.gradient, gradient)
        rate = jnp.where(ends, rate, 0.0)
        rest = jax.tree.map(lambda g: jnp.where(ends, 0.0, g), gradient)
    else:
        rest = None
    theta = jax.tree.map(lambda p, g: p - rate * g, local.theta, gradient)
    return Local(theta, rest, local.loss + loss)
