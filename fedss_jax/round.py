"""A round as one program: jit(shard_map(vmap(client))) over the mesh, then the server's step.

Clients' randomness, padding and devices all meet here; what one client does is in client.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from fedss_jax import class_matrix, client, parallel, sampling
from fedss_jax.client import LocalTraining
from fedss_jax.server import CohortSum, Server
from fedss_jax.types import Clients, Resident, ServerState, Stored, Theta


class RoundStats(NamedTuple):
    """Sums over a round; the reader divides."""

    loss: jax.Array  # [] over all examples of all local steps
    examples: jax.Array  # [] that the local steps saw
    requested: jax.Array  # [] rows of W that clients received
    clients: jax.Array  # [] that took part


class Round(NamedTuple):
    """A kind of round, federated or not.

    run(state, stored, labels [N], population, root key) -> (next state, stats). The state passed in is given up.
    examples(labels, population, root key, round) -> the rows of the store that a round takes, slot by slot, -1 for
    padding: whoever streams them must know before the round begins.
    streamed: how a round's own examples, [*slots, ...], are spread over the devices.
    """

    run: Callable[[ServerState, Stored, jax.Array, Clients, jax.Array], tuple[ServerState, RoundStats]]
    examples: Callable[[jax.Array, Clients, jax.Array, jax.Array], jax.Array]
    streamed: PartitionSpec


def take_cohort(population: Clients, client_ids: jax.Array) -> Clients:
    """The rows of `client_ids` [K]; id -1 gives a client that has no examples and counts for nothing."""
    cohort = Clients(*(field[jnp.maximum(client_ids, 0)] for field in population))
    here = client_ids >= 0
    return cohort._replace(client_id=client_ids, num_examples=jnp.where(here, cohort.num_examples, 0))


def make_round(training: LocalTraining, server: Server, clients_per_round: int, mesh: Mesh) -> Round:
    def draw_cohort(population: Clients, root: jax.Array, round: jax.Array) -> Clients:
        # Clients are numbered from 0, so the next number after theirs names the draw of the cohort itself.
        size = population.client_id.shape[0]
        key = sampling.client_key(root, round, jnp.asarray(size))
        chosen = sampling.cohort(key, size, clients_per_round)
        fill = parallel.padded(clients_per_round, mesh) - clients_per_round
        return take_cohort(population, jnp.pad(chosen, (0, fill), constant_values=-1))

    def train_cohort(
        theta: Theta, round: jax.Array, root: jax.Array, stored: Stored, labels: jax.Array, cohort: Clients
    ) -> tuple[CohortSum, RoundStats]:
        """One device's share of the cohort, summed over all devices."""
        theta = parallel.varying(theta)

        def one(member: Clients, stored: Stored) -> client.Update:
            key = sampling.client_key(root, round, member.client_id)
            return client.run(training, theta, stored, labels[member.examples], member, key)

        updates = jax.vmap(one, in_axes=(0, None if isinstance(stored, Resident) else 0))(cohort, stored)
        n_k = cohort.num_examples.astype(jnp.float32)
        held = updates.request.valid * n_k[:, None]  # [K, S]; zero for padding
        gradient = updates.pseudo_gradient
        classes = updates.request.classes
        sums = CohortSum(
            encoder=jax.tree.map(lambda g: jnp.tensordot(n_k, g, axes=1, precision="highest"), gradient.encoder),
            rows=class_matrix.scatter_add(training.num_classes, classes, held[..., None] * gradient.class_matrix),
            weight=jnp.sum(n_k),
            row_weight=class_matrix.scatter_add(training.num_classes, classes, held[..., None])[:, 0],
        )
        here = cohort.num_examples > 0
        stats = RoundStats(
            loss=jnp.sum(updates.loss),
            examples=jnp.sum(updates.examples_seen),
            requested=jnp.sum(updates.request.valid * here[:, None]),
            clients=jnp.sum(here),
        )
        return jax.lax.psum((sums, stats), parallel.CLIENTS)

    def run(
        state: ServerState, stored: Stored, labels: jax.Array, population: Clients, root: jax.Array
    ) -> tuple[ServerState, RoundStats]:
        everywhere = parallel.REPLICATED
        train_everywhere = jax.shard_map(
            train_cohort,
            mesh=mesh,
            in_specs=(everywhere, everywhere, everywhere, parallel.spec(stored), everywhere, parallel.BY_CLIENT),
            out_specs=everywhere,
        )
        cohort = draw_cohort(population, root, state.round)
        sums, stats = train_everywhere(state.theta, state.round, root, stored, labels, cohort)
        return server.step(state, sums), stats

    def examples(labels: jax.Array, population: Clients, root: jax.Array, round: jax.Array) -> jax.Array:
        cohort = draw_cohort(population, root, round)
        real = jnp.arange(cohort.examples.shape[1]) < cohort.num_examples[:, None]
        return jnp.where(real, cohort.examples, -1)

    return Round(jax.jit(run, donate_argnums=0), jax.jit(examples), parallel.BY_CLIENT)
