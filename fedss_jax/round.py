"""A round as one program: jit(shard_map(lanes of vmapped clients)) over the mesh, then the server's step.

Clients' randomness, packing and devices all meet here; what one client does is in client.py, how clients share lanes
in lanes.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedss_jax import client, lanes, parallel, sampling
from fedss_jax.client import Local, LocalTraining, Work
from fedss_jax.crew import Sums
from fedss_jax.lanes import Queues
from fedss_jax.server import CohortSum, Server
from fedss_jax.types import Clients, Resident, ServerState, Stored, Theta


class RoundStats(NamedTuple):
    """Sums over a round; the reader divides. [R] for several rounds."""

    loss: jax.Array  # [] over all examples of all local steps
    examples: jax.Array  # [] that the local steps saw
    slots: jax.Array  # [] for examples that were computed, padding and idle lanes included
    requested: jax.Array  # [] rows of W that clients received
    clients: jax.Array  # [] that took part


class Round(NamedTuple):
    """A kind of round, federated or not.

    one(state, stored, labels [N], population, root key) -> (next state, stats).
    examples(labels, population, root key, round) -> the rows of the store that a round takes, place by place, -1 for
    padding: whoever streams them must know before the round begins.
    streamed: how a round's own examples, [*places, ...], are spread over the devices.
    mesh: where it runs.
    """

    one: Callable[[ServerState, Stored, jax.Array, Clients, jax.Array], tuple[ServerState, RoundStats]]
    examples: Callable[[jax.Array, Clients, jax.Array, jax.Array], jax.Array]
    streamed: PartitionSpec
    mesh: Mesh

    def several(self, most: int) -> Callable[..., tuple[ServerState, RoundStats]]:
        """A program of up to `most` rounds: run(rounds, state, stored, labels, population, root key) -> (state, stats
        [most], of which the first `rounds` count). The state passed in is given up.
        """

        def read_anywhere(stats: RoundStats) -> RoundStats:
            everywhere = NamedSharding(self.mesh, parallel.REPLICATED)
            return jax.tree.map(lambda a: jax.lax.with_sharding_constraint(a, everywhere), stats)

        def run(rounds: jax.Array, state: ServerState, *inputs: Any) -> tuple[ServerState, RoundStats]:
            if most == 1:
                state, stats = self.one(state, *inputs)
                return state, read_anywhere(jax.tree.map(lambda number: number[None], stats))

            def next_round(i: jax.Array, done: tuple[ServerState, RoundStats]) -> tuple[ServerState, RoundStats]:
                state, stats = done
                state, one = self.one(state, *inputs)
                return state, jax.tree.map(lambda numbers, number: numbers.at[i].set(number), stats, one)

            _, shapes = jax.eval_shape(self.one, state, *inputs)
            nothing = jax.tree.map(lambda number: jnp.zeros(most, number.dtype), shapes)
            state, stats = jax.lax.fori_loop(0, rounds, next_round, (state, nothing))
            return state, read_anywhere(stats)

        return jax.jit(run, donate_argnums=1, compiler_options=parallel.compiler_options(self.mesh))


class Packing(NamedTuple):
    """How cohorts are laid out on the devices."""

    clients_per_round: int
    lanes: int  # clients that are under way at a time, on a device or (where all work together) on all of them
    places: int = 0  # examples that a device is sent for a round, where they are streamed


class Cohort(NamedTuple):
    """The K clients of a round, and where they are computed."""

    clients: Clients
    steps: jax.Array  # [K]
    queues: Queues  # over the lanes of all groups, group by group
    group: jax.Array  # [K]
    place: jax.Array  # [K] of a client's first example among those that its group takes
    taken: jax.Array  # [groups] how many examples each takes in all


def draw_cohort(
    training: LocalTraining, packing: Packing, mesh: Mesh, population: Clients, root: jax.Array, round: jax.Array
) -> Cohort:
    # Clients are numbered from 0, so the next number after theirs names the draw of the cohort itself.
    size = population.client_id.shape[0]
    key = sampling.client_key(root, round, jnp.asarray(size))
    chosen = sampling.cohort(key, size, packing.clients_per_round)
    clients = Clients(*(field[chosen] for field in population))
    steps = training.epochs * client.parts_an_epoch(training, clients)
    groups = training.crew.groups(mesh)
    queues = lanes.pack(steps, packing.lanes * groups)
    group = queues.lane // packing.lanes
    in_group = (group[:, None] == jnp.arange(groups)) * clients.num_examples[:, None]  # [K, groups]
    before = jnp.cumsum(in_group, axis=0) - in_group
    place = jnp.sum(jnp.where(in_group > 0, before, 0), axis=1)
    return Cohort(clients, steps, queues, group, place, jnp.sum(in_group, axis=0))


def make_round(training: LocalTraining, server: Server, packing: Packing, mesh: Mesh) -> Round:
    draw = partial(draw_cohort, training, packing, mesh)
    crew = training.crew
    groups = crew.groups(mesh)

    def train_share(
        sent: Theta, wanted: Any, stored: Stored, labels: jax.Array, works: Work, steps: jax.Array, queues: Queues
    ) -> Sums:
        """One device's lanes. sent: phi, and the wanted rows of W."""
        nothing = Sums(jax.tree.map(jnp.zeros_like, sent.encoder), wanted.nothing(sent.class_matrix), jnp.zeros(()))
        rows = crew.make_own((sent.class_matrix, nothing.rows))
        encoder, no_encoder, no_loss = parallel.varying((sent.encoder, nothing.encoder, nothing.loss))
        sent, nothing = Theta(encoder, rows[0]), Sums(no_encoder, rows[1], no_loss)

        def received(member: jax.Array) -> Theta:
            return Theta(sent.encoder, wanted.received(sent.class_matrix, member))

        def take_up(member: jax.Array) -> Local:
            return client.start(training, received(member))

        def step(local: Local, member: jax.Array, index: jax.Array, is_there: jax.Array) -> Local:
            return client.step(training, stored, labels, works.of(member), local, index, is_there)

        def hand_in(sums: Sums, local: Local, members: jax.Array, done: jax.Array) -> Sums:
            n_k = jnp.where(done, works.client.num_examples[members], 0).astype(jnp.float32)
            rows = jax.vmap(lambda member: received(member).class_matrix)(members)
            rows = n_k[:, None, None] * (rows - local.theta.class_matrix)
            encoder = jax.tree.map(
                lambda total, sent, trained: total + jnp.tensordot(n_k, sent - trained, axes=1, precision="highest"),
                sums.encoder,
                sent.encoder,
                local.theta.encoder,
            )
            loss = sums.loss + jnp.sum(jnp.where(done, local.loss, 0.0))
            return Sums(encoder, wanted.hand_in(sums.rows, rows, members, done), loss)

        sums = lanes.run(queues, steps, take_up=take_up, step=step, hand_in=hand_in, sums=nothing)
        return sums._replace(rows=wanted.total(sums.rows))

    def everyones_sums(stored: Stored) -> Callable[..., Sums]:
        """train_share of all devices."""
        everywhere: Any = parallel.REPLICATED
        by_group: Any = crew.by_group
        sent, queues = Theta(everywhere, crew.rows), Queues(by_group, everywhere, everywhere)  # type: ignore[arg-type]
        examples = everywhere if isinstance(stored, Resident) else by_group
        in_specs = (sent, everywhere, examples, everywhere, everywhere, everywhere, queues)
        return crew.collected(train_share, mesh, in_specs)

    def one(
        state: ServerState, stored: Stored, labels: jax.Array, population: Clients, root: jax.Array
    ) -> tuple[ServerState, RoundStats]:
        cohort = draw(population, root, state.round)
        clients = cohort.clients
        keys = jax.vmap(lambda member: sampling.client_key(root, state.round, member))(clients.client_id)
        works = jax.vmap(partial(client.prepare, training))(clients, keys, cohort.place)
        wanted = works.request.wanted(training.num_classes)
        taken = server.take(state, wanted)
        sums = everyones_sums(stored)(
            Theta(state.encoder, taken.rows), wanted, stored, labels, works, cohort.steps, cohort.queues
        )
        n_k = clients.num_examples.astype(jnp.float32)
        cohort_sum = CohortSum(sums.encoder, sums.rows, jnp.sum(n_k), wanted.weigh(n_k))
        state = server.step(state, wanted, taken, cohort_sum)

        part_size, _ = training.parts_of(clients.examples.shape[1])
        load = jnp.zeros(groups * packing.lanes, jnp.int32).at[cohort.queues.lane].add(cohort.steps)
        trips = jnp.max(load.reshape(groups, packing.lanes), axis=1)
        took_part = clients.num_examples > 0
        stats = RoundStats(
            loss=sums.loss,
            examples=training.epochs * jnp.sum(clients.num_examples),
            slots=jnp.sum(trips) * packing.lanes * crew.padded(part_size),
            requested=jnp.sum(took_part * jnp.sum(works.request.valid, axis=-1)),
            clients=jnp.sum(took_part),
        )
        return state, stats

    def examples(labels: jax.Array, population: Clients, root: jax.Array, round: jax.Array) -> jax.Array:
        cohort = draw(population, root, round)
        clients = cohort.clients
        slot = jnp.arange(clients.examples.shape[1])
        place = (cohort.group * packing.places + cohort.place)[:, None] + slot
        nowhere = groups * packing.places
        place = jnp.where(slot < clients.num_examples[:, None], place, nowhere)
        return jnp.full(nowhere, -1).at[place].set(clients.examples, mode="drop")

    return Round(one, jax.jit(examples), crew.by_group, mesh)
