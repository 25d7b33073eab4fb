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

from fedss_jax import client, defence, lanes, parallel, sampling
from fedss_jax.client import Local, LocalTraining, Work
from fedss_jax.crew import Sums
from fedss_jax.faults import NO_FAULTS, Faults, Turnout
from fedss_jax.lanes import Queues
from fedss_jax.server import CohortSum, Server
from fedss_jax.types import Clients, Resident, ServerState, Stored, Theta


class Attendance(NamedTuple):
    """A round's clients in numbers. [R] for several rounds."""

    chosen: jax.Array  # [] clients that were sent the model
    dropped: jax.Array  # [] of them, those that were not heard of again
    late: jax.Array  # [] those that were, but too late
    non_finite: jax.Array  # [] those whose update was left out, as it was not finite
    broken: jax.Array  # [] of these, those that nobody had spoilt
    clipped: jax.Array  # [] those whose update was shortened
    received: jax.Array  # [] rows of W that clients were sent
    returned: jax.Array  # [] rows of W that came back in time
    norm: jax.Array  # [] median length of the finite updates
    bound: jax.Array  # [] on it; 0 for none

    @property
    def reported(self) -> jax.Array:
        return self.chosen - self.dropped - self.late

    @property
    def counted(self) -> jax.Array:
        return self.reported - self.non_finite


class RoundStats(NamedTuple):
    """Sums over a round; the reader divides. [R] for several rounds."""

    loss: jax.Array  # [] over all examples of the local steps of those clients whose update counts
    counted: jax.Array  # [] these examples
    examples: jax.Array  # [] that the local steps saw, of all clients
    slots: jax.Array  # [] for examples that were computed, padding and idle lanes included
    steps: jax.Array  # [] that the server took
    clients: Attendance | None  # None: nobody is federated


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

    def several(self, most: int, state: ServerState | None = None) -> Callable[..., tuple[ServerState, RoundStats]]:
        """A program of up to `most` rounds: run(rounds, state, stored, labels, population, root key) -> (state, stats
        [most], of which the first `rounds` count). The state passed in is given up.

        state: such as will be passed in, or its shapes and places; the next one then lies on the devices as this does.
        """
        places = jax.tree.map(lambda a: a.format, state)

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

        options = parallel.compiler_options(self.mesh)
        return jax.jit(run, donate_argnums=1, out_shardings=(places, None), compiler_options=options)


class Packing(NamedTuple):
    """How cohorts are laid out on the devices."""

    clients_per_round: int
    lanes: int  # clients that are under way at a time, on a device or (where all work together) on all of them
    places: int = 0  # examples that a device is sent for a round, where they are streamed


class Cohort(NamedTuple):
    """The K clients of a round, and where they are computed.

    Who does not report has no examples here. Where more than K are chosen, at least as many as are too many do not
    report, and are left out, so that nothing gets larger by them.
    """

    clients: Clients
    chosen: Clients  # [chosen] all that are sent the model
    turnout: Turnout  # of these
    steps: jax.Array  # [K]
    queues: Queues  # over the lanes of all groups, group by group
    group: jax.Array  # [K]
    place: jax.Array  # [K] of a client's first example among those that its group takes
    taken: jax.Array  # [groups] how many examples each takes in all


def draw_cohort(
    training: LocalTraining,
    packing: Packing,
    faults: Faults,
    mesh: Mesh,
    population: Clients,
    root: jax.Array,
    round: jax.Array,
) -> Cohort:
    # Clients are numbered from 0, so the next number after theirs names the draw of the cohort itself.
    size = population.client_id.shape[0]
    key = sampling.client_key(root, round, jnp.asarray(size))
    members = sampling.cohort(key, size, faults.chosen(packing.clients_per_round))
    chosen = clients = Clients(*(field[members] for field in population))
    nobody = jnp.zeros(len(members), bool)
    turnout = Turnout(dropped=nobody, late=nobody)
    if faults.loses_clients:
        keys = fault_keys(root, round, chosen)
        mean = jnp.mean(population.num_examples.astype(jnp.float32))
        turnout = faults.turnout(keys, chosen.num_examples, mean, packing.clients_per_round)
        clients = chosen._replace(num_examples=jnp.where(turnout.reports, chosen.num_examples, 0))
    if len(members) > packing.clients_per_round:
        first = jnp.argsort(~turnout.reports, stable=True)[: packing.clients_per_round]
        clients = Clients(*(field[first] for field in clients))
    steps = training.epochs * client.parts_an_epoch(training, clients)
    groups = training.crew.groups(mesh)
    queues = lanes.pack(steps, packing.lanes * groups)
    group = queues.lane // packing.lanes
    in_group = (group[:, None] == jnp.arange(groups)) * clients.num_examples[:, None]  # [K, groups]
    before = jnp.cumsum(in_group, axis=0) - in_group
    place = jnp.sum(jnp.where(in_group > 0, before, 0), axis=1)
    return Cohort(clients, chosen, turnout, steps, queues, group, place, jnp.sum(in_group, axis=0))


def fault_keys(root: jax.Array, round: jax.Array, clients: Clients) -> jax.Array:
    """Each client's key for what goes wrong with it in a round. [K]"""
    return jax.vmap(lambda member: jax.random.fold_in(sampling.client_key(root, round, member), client.FAULTS))(
        clients.client_id
    )


def attendance(
    training: LocalTraining, cohort: Cohort, works: Work, norms: jax.Array, bound: jax.Array | None
) -> Attendance:
    """norms [K]: inf for an update that is not finite."""
    reports, finite = cohort.clients.num_examples > 0, jnp.isfinite(norms)
    honest = True if works.spoilt is None else works.spoilt == 1.0
    return Attendance(
        chosen=jnp.asarray(len(cohort.chosen.client_id)),
        dropped=jnp.sum(cohort.turnout.dropped),
        late=jnp.sum(cohort.turnout.late),
        non_finite=jnp.sum(~finite),
        broken=jnp.sum(~finite & honest),
        clipped=jnp.sum(finite & (norms > bound)) if bound is not None else jnp.zeros((), jnp.int32),
        received=jnp.sum(training.method.num_requested(cohort.chosen.num_positives, training.num_classes)),
        returned=jnp.sum(reports * jnp.sum(works.request.valid, axis=-1)),
        norm=jnp.nanmedian(jnp.where(reports & finite, norms, jnp.nan)),
        bound=bound if bound is not None else jnp.zeros(()),
    )


def make_round(
    training: LocalTraining, server: Server, packing: Packing, mesh: Mesh, faults: Faults = NO_FAULTS
) -> Round:
    draw = partial(draw_cohort, training, packing, faults, mesh)
    crew = training.crew
    groups = crew.groups(mesh)

    def train_share(
        sent: Theta,
        wanted: Any,
        stored: Stored,
        labels: jax.Array,
        works: Work,
        steps: jax.Array,
        queues: Queues,
        bound: jax.Array | None,
    ) -> Sums:
        """One device's lanes. sent: phi, and the wanted rows of W; bound: on the length of an update."""
        rows, no_rows = crew.make_own((sent.class_matrix, wanted.nothing(sent.class_matrix)))
        encoder, no_loss, no_norms = parallel.varying((sent.encoder, jnp.zeros(()), jnp.zeros(steps.shape)))
        nothing = Sums(jax.tree.map(jnp.zeros_like, encoder), no_rows, no_loss, no_norms)
        sent = Theta(encoder, rows)

        def received(member: jax.Array) -> Theta:
            return Theta(sent.encoder, wanted.received(sent.class_matrix, member))

        def take_up(member: jax.Array) -> Local:
            return client.start(training, received(member))

        def step(local: Local, member: jax.Array, index: jax.Array, is_there: jax.Array) -> Local:
            return client.step(training, stored, labels, works.of(member), local, index, is_there)

        def hand_in(sums: Sums, local: Local, members: jax.Array, done: jax.Array) -> Sums:
            update = jax.tree.map(jnp.subtract, jax.vmap(received)(members), local.theta)
            if works.spoilt is not None:
                factor = works.spoilt[members]
                update = jax.tree.map(lambda a: lanes.like(factor, a) * a, update)
            norm = jnp.sqrt(defence.squares(update.encoder) + crew.of_all_rows(defence.squares(update.class_matrix)))
            counts = done & jnp.isfinite(norm) & jnp.isfinite(local.loss)
            norm = jnp.where(counts, norm, jnp.inf)
            # Not by a weight of 0 alone: 0 times NaN is NaN.
            update = jax.tree.map(lambda a: jnp.where(lanes.like(counts, a), a, 0.0), update)
            weight = jnp.where(counts, works.client.num_examples[members], 0).astype(jnp.float32)
            if bound is not None:
                weight = weight * jnp.minimum(1.0, bound / norm)
            encoder = jax.tree.map(
                lambda total, of_lanes: total + jnp.tensordot(weight, of_lanes, axes=1, precision="highest"),
                sums.encoder,
                update.encoder,
            )
            rows = wanted.hand_in(sums.rows, weight[:, None, None] * update.class_matrix, members, done)
            loss = sums.loss + jnp.sum(jnp.where(counts, local.loss, 0.0))
            place = jnp.where(done, members, len(sums.norms))
            norms = sums.norms.at[place].set(norm, mode="drop")
            return Sums(encoder, rows, loss, norms)

        sums = lanes.run(queues, steps, take_up=take_up, step=step, hand_in=hand_in, sums=nothing)
        return sums._replace(rows=wanted.total(sums.rows))

    def everyones_sums(stored: Stored) -> Callable[..., Sums]:
        """train_share of all devices."""
        everywhere: Any = parallel.REPLICATED
        by_group: Any = crew.by_group
        sent, queues = Theta(everywhere, crew.rows), Queues(by_group, everywhere, everywhere)  # type: ignore[arg-type]
        examples = everywhere if isinstance(stored, Resident) else by_group
        in_specs = (sent, everywhere, examples, everywhere, everywhere, everywhere, queues, everywhere)
        return crew.collected(train_share, mesh, in_specs)

    def one(
        state: ServerState, stored: Stored, labels: jax.Array, population: Clients, root: jax.Array
    ) -> tuple[ServerState, RoundStats]:
        cohort = draw(population, root, state.round)
        clients = cohort.clients
        keys = jax.vmap(lambda member: sampling.client_key(root, state.round, member))(clients.client_id)
        works = jax.vmap(partial(client.prepare, training))(clients, keys, cohort.place)
        if faults.spoils_updates:
            works = works._replace(spoilt=faults.spoil(fault_keys(root, state.round, clients)))
        wanted = works.request.wanted(training.num_classes)
        taken, bound = server.take(state, wanted), server.clipping.bound(state.bound)
        sums = everyones_sums(stored)(
            Theta(state.encoder, taken.rows), wanted, stored, labels, works, cohort.steps, cohort.queues, bound
        )
        counted = jnp.where(jnp.isfinite(sums.norms), clients.num_examples, 0)
        n_k = counted.astype(jnp.float32)
        attended = attendance(training, cohort, works, sums.norms, bound)
        within = 1 - attended.clipped / jnp.maximum(attended.counted, 1)
        cohort_sum = CohortSum(sums.encoder, sums.rows, jnp.sum(n_k), wanted.weigh(n_k), within)
        before = state.steps
        state = server.step(state, wanted, taken, cohort_sum)

        part_size, _ = training.parts_of(clients.examples.shape[1])
        load = jnp.zeros(groups * packing.lanes, jnp.int32).at[cohort.queues.lane].add(cohort.steps)
        trips = jnp.max(load.reshape(groups, packing.lanes), axis=1)
        stats = RoundStats(
            loss=sums.loss,
            counted=training.epochs * jnp.sum(counted),
            examples=training.epochs * jnp.sum(clients.num_examples),
            slots=jnp.sum(trips) * packing.lanes * crew.padded(part_size),
            steps=state.steps - before,
            clients=attended,
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
