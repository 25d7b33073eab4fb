"""One client's round: request rows, run local SGD on the sub-model, hand in its pseudo-gradient.

Written for a single client; round.py vmaps it.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedss_jax import class_matrix, losses, sampling
from fedss_jax.methods import Method
from fedss_jax.types import Clients, Model, Request, Stored, Theta, Transform

NEGATIVES, SHUFFLE, AUGMENT = range(3)  # a client's key splits into one for each use


@dataclasses.dataclass(frozen=True)
class LocalTraining:
    """What every client is told to do."""

    model: Model
    method: Method
    transform: Transform
    learning_rate: float
    batch_size: int
    epochs: int
    logit_scale: float
    num_classes: int


class Update(NamedTuple):
    """What a client sends back, and how its training went."""

    pseudo_gradient: Theta  # theta_t - theta_k, for phi and for the requested rows
    request: Request
    loss: jax.Array  # [] summed over the examples of all its local steps
    examples_seen: jax.Array  # []


class Plan(NamedTuple):
    """Which of the client's examples each of T local steps sees."""

    epoch: jax.Array  # [T]
    slots: jax.Array  # [T, B] places in the client's `examples`
    weights: jax.Array  # [T, B] 1, or 0 for padding


class Batch(NamedTuple):
    images: jax.Array  # [B, H, W, C]
    targets: jax.Array  # [B]
    weights: jax.Array  # [B] 1, or 0 for padding


def batch_loss(training: LocalTraining, theta: Theta, request: Request, batch: Batch) -> jax.Array:
    """Summed loss of a batch under a method's softmax. []"""
    embeddings = training.model.embed(theta.encoder, batch.images)
    logits = losses.cosine_logits(embeddings, theta.class_matrix, training.logit_scale)
    each = losses.sampled_softmax(logits, batch.targets, training.method.competes(request), request.log_inclusion)
    return jnp.sum(each * batch.weights)


def schedule(key: jax.Array, num_examples: jax.Array, max_examples: int, batch_size: int, epochs: int) -> Plan:
    """Every epoch goes through the client's examples in an order of its own.

    The last partial batch is kept: the batches of the longest client fit, and a shorter client's later slots weigh
    nothing.
    """
    batch_size = min(batch_size, max_examples)
    steps = -(-max_examples // batch_size)
    position = jnp.arange(steps * batch_size)

    def one_epoch(epoch: jax.Array) -> Plan:
        order = sampling.shuffled(jax.random.fold_in(key, epoch), num_examples, max_examples)
        slots = jnp.where(position < num_examples, order[jnp.minimum(position, max_examples - 1)], 0)
        weights = (position < num_examples).astype(jnp.float32)
        return Plan(jnp.full(steps, epoch), slots.reshape(steps, batch_size), weights.reshape(steps, batch_size))

    by_epoch = jax.vmap(one_epoch)(jnp.arange(epochs))
    return Plan(*(part.reshape(epochs * steps, *part.shape[2:]) for part in by_epoch))


def run(
    training: LocalTraining, theta: Theta, stored: Stored, labels: jax.Array, client: Clients, key: jax.Array
) -> Update:
    """Local SGD from the server's theta on one client's examples, whose classes are labels [E]."""
    request = training.method.request(jax.random.fold_in(key, NEGATIVES), client, labels, training.num_classes)
    received = Theta(theta.encoder, class_matrix.gather(theta.class_matrix, request.classes))
    shuffle_key, augment_key = (jax.random.fold_in(key, use) for use in (SHUFFLE, AUGMENT))

    def step(local: Theta, plan: Plan) -> tuple[Theta, jax.Array]:
        epoch, slots, weights = plan
        epoch_key = jax.random.fold_in(augment_key, epoch)
        keys = jax.vmap(lambda slot: jax.random.fold_in(epoch_key, slot))(slots)
        images = jax.vmap(training.transform.train)(keys, stored.take(client.examples, slots))
        batch = Batch(images, request.targets[slots], weights)
        loss, gradient = jax.value_and_grad(lambda local: batch_loss(training, local, request, batch))(local)
        # The mean over the batch's real examples; a step without any leaves the sub-model as it is.
        rate = training.learning_rate / jnp.maximum(jnp.sum(weights), 1.0)
        return jax.tree.map(lambda p, g: p - rate * g, local, gradient), loss

    plan = schedule(shuffle_key, client.num_examples, client.examples.shape[0], training.batch_size, training.epochs)
    trained, step_losses = jax.lax.scan(step, received, plan)
    return Update(
        pseudo_gradient=jax.tree.map(jnp.subtract, received, trained),
        request=request,
        loss=jnp.sum(step_losses),
        examples_seen=jnp.sum(plan.weights).astype(jnp.int32),
    )
