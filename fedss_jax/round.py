"""A round as one program: jit(shard_map(vmap(client))) over the mesh, then the server's step.

Clients' randomness, padding and devices all meet here; what one client does is in client.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fedss_jax import class_matrix, client, parallel, sampling
from fedss_jax.client import LocalTraining
from fedss_jax.server import CohortSum, Server
from fedss_jax.types import Clients, ServerState, Store, Theta


class RoundStats(NamedTuple):
    """Sums over a round; the reader divides."""

    loss: jax.Array  # [] over all examples of all local steps
    examples: jax.Array  # [] that the local steps saw
    requested: jax.Array  # [] rows of W that clients received
    clients: jax.Array  # [] that took part


Round = Callable[[ServerState, Store, Clients, jax.Array], tuple[ServerState, RoundStats]]


def take_cohort(population: Clients, client_ids: jax.Array) -> Clients:
    """The rows of `client_ids` [K]; id -1 gives a client that has no examples and counts for nothing."""
    cohort = Clients(*(field[jnp.maximum(client_ids, 0)] for field in population))
    here = client_ids >= 0
    return cohort._replace(client_id=client_ids, num_examples=jnp.where(here, cohort.num_examples, 0))


def make_round(training: LocalTraining, server: Server, clients_per_round: int, mesh: Mesh) -> Round:
    """round(state, store, population, root key) -> (next state, stats). The state passed in is given up."""

    def train_cohort(
        theta: Theta, round: jax.Array, root: jax.Array, store: Store, cohort: Clients
    ) -> tuple[CohortSum, RoundStats]:
        """One device's share of the cohort, summed over all devices."""
        theta = parallel.varying(theta)

        def one(member: Clients) -> client.Update:
            key = sampling.client_key(root, round, member.client_id)
            return client.run(training, theta, store, member, key)

        updates = jax.vmap(one)(cohort)
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

    everywhere = parallel.REPLICATED
    train_everywhere = jax.shard_map(
        train_cohort,
        mesh=mesh,
        in_specs=(everywhere, everywhere, everywhere, everywhere, parallel.BY_CLIENT),
        out_specs=everywhere,
    )

    def round_program(
        state: ServerState, store: Store, population: Clients, root: jax.Array
    ) -> tuple[ServerState, RoundStats]:
        # Clients are numbered from 0, so the next number after theirs names the draw of the cohort itself.
        size = population.client_id.shape[0]
        key = sampling.client_key(root, state.round, jnp.asarray(size))
        chosen = sampling.cohort(key, size, clients_per_round)
        fill = parallel.padded(clients_per_round, mesh) - clients_per_round
        chosen = jnp.pad(chosen, (0, fill), constant_values=-1)
        cohort = take_cohort(population, chosen)
        sums, stats = train_everywhere(state.theta, state.round, root, store, cohort)
        return server.step(state, sums), stats

    return jax.jit(round_program, donate_argnums=0)
