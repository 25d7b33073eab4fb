"""The i.i.d. baseline on the same losses: plain SGD on batches of all examples, data-parallel over the mesh.

One "round" makes as many model updates as the clients of a federated round make together, so that both see as
many examples. (The paper asks for "an equivalent number of model updates". Counting only the rounds, or one
client's steps, would be about four epochs on SOP, far from the 99.9 % training accuracy that it reports.)
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from fedss_jax import parallel, sampling
from fedss_jax.class_matrix import Everything
from fedss_jax.client import Batch, LocalTraining, batch_loss
from fedss_jax.round import Round, RoundStats
from fedss_jax.server import CohortSum, Server
from fedss_jax.types import Clients, ServerState, Stored, Theta


def updates_per_round(population: Clients, clients_per_round: int, training: LocalTraining) -> int:
    """Local steps that an average cohort makes in all."""
    steps = -(-np.asarray(population.num_examples) // training.batch_size)
    return max(1, round(clients_per_round * training.epochs * float(steps.mean())))


def make_round(training: LocalTraining, server: Server, updates: int, mesh: Mesh) -> Round:
    """The same signature as a federated round; it just does not look at who holds what.

    `server` holds plain SGD with the learning rate of the batches: each update is one step of it.
    """

    def draw_batch(root: jax.Array, round: jax.Array, update: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
        """The examples of an update [B], -1 for padding, and a key to augment them with."""
        batch_size = min(training.batch_size, size)
        draw_key, augment_key = jax.random.split(sampling.client_key(root, round, update))
        chosen = sampling.distinct(draw_key, jnp.asarray(size), jnp.asarray(batch_size), batch_size)
        fill = parallel.padded(batch_size, mesh) - batch_size
        return jnp.pad(chosen, (0, fill), constant_values=-1), augment_key

    def batch_gradient(
        theta: Theta, key: jax.Array, stored: Stored, labels: jax.Array, chosen: jax.Array
    ) -> tuple[jax.Array, Theta]:
        """Loss and gradient, summed over one device's share of the batch."""
        theta = parallel.varying(theta)
        example = jnp.maximum(chosen, 0)
        labels = labels[example]
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(example)
        images = jax.vmap(training.transform.train)(keys, stored.take(example, jnp.arange(len(example))))
        everyone = Clients(*(jnp.zeros((), jnp.int32) for _ in Clients._fields))
        request = training.method.request(key, everyone, training.num_classes)
        batch = Batch(images, labels, (chosen >= 0).astype(jnp.float32))
        return jax.value_and_grad(lambda t: batch_loss(training, t, request, batch))(theta)

    def one(
        state: ServerState, stored: Stored, labels: jax.Array, population: Clients, root: jax.Array
    ) -> tuple[ServerState, RoundStats]:
        everywhere = parallel.REPLICATED
        in_specs = (everywhere, everywhere, parallel.spec(stored), everywhere, parallel.BY_CLIENT)
        whole_gradient = parallel.summed(batch_gradient, mesh, in_specs)
        size = labels.shape[0]
        batch_size = min(training.batch_size, size)
        everything = Everything(training.num_classes)

        before = state.steps

        def update(state: ServerState, index: jax.Array) -> tuple[ServerState, jax.Array]:
            chosen, key = draw_batch(root, state.round, index, size)
            taken = server.take(state, everything)
            theta = Theta(state.encoder, taken.rows)
            loss, gradient = whole_gradient(theta, key, stored.of_update(index), labels, chosen)
            weight = jnp.asarray(batch_size, jnp.float32)
            batch = CohortSum(gradient.encoder, gradient.class_matrix, weight, everything.weigh(weight))
            # Only the last of a round's updates ends the round.
            return server.step(state, everything, taken, batch)._replace(round=state.round), loss

        state, losses = jax.lax.scan(update, state, jnp.arange(updates))
        seen, slots = (jnp.asarray(updates * size) for size in (batch_size, parallel.padded(batch_size, mesh)))
        stats = RoundStats(jnp.sum(losses), seen, seen, slots, state.steps - before, clients=None)
        return state._replace(round=state.round + 1), stats

    def examples(labels: jax.Array, population: Clients, root: jax.Array, round: jax.Array) -> jax.Array:
        return jax.vmap(lambda update: draw_batch(root, round, update, labels.shape[0])[0])(jnp.arange(updates))

    return Round(one, jax.jit(examples), PartitionSpec(None, parallel.CLIENTS), mesh)
