"""Clients of unequal length on a fixed number of lanes, as sequence packing does it for language models.

A lane runs through a list of clients, step by step: it takes up a client, makes its steps, hands in what came of it
and takes up the next. All lanes step together, as one vmapped step; the loop ends with the longest lane. So a device
computes about as many steps as there are, where padding every client to the longest would compute many times more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Local = Any  # what a lane works on: a tree of arrays, [L, ...] for all lanes
Sums = Any  # what clients hand in, all together: a tree of arrays

# How the loop over steps, and the change of clients in it, are called in a compiled program: how often they run follows
# from the cohort, so that who reads the program must be told.
LANES, CHANGE = "lanes", "change_of_client"


class Queues(NamedTuple):
    """Who is on which of L lanes, and in which order. Clients are numbered 0 .. K-1; K stands for nobody."""

    first: jax.Array  # [L] the client that a lane begins with
    following: jax.Array  # [K + 1] who comes after a client, and after nobody
    lane: jax.Array  # [K] where a client is; L for one without any steps


def pack(lengths: jax.Array, lanes: int) -> Queues:
    """Clients of lengths [K] steps in lists of about equal sums.

    The longest client first, each to the lane that has least so far: no list is longer than 4/3 of the best possible
    (Graham 1969), and with many clients to a lane it is nearly that.
    """
    count = len(lengths)
    if lanes >= count:
        is_there = lengths > 0
        first = jnp.where(is_there, jnp.arange(count), count)
        return Queues(
            jnp.pad(first, (0, lanes - count), constant_values=count),
            jnp.full(count + 1, count),
            jnp.where(is_there, jnp.arange(count), lanes),
        )
    longest_first = jnp.argsort(lengths, descending=True, stable=True)
    begin = count + 1 + jnp.arange(lanes)  # as if before its first client every lane had one of its own

    def place(i: jax.Array, placed: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        load, last, following, lane_of = placed
        client = longest_first[i]
        length = lengths[client]
        # One without steps goes nowhere.
        lane = jnp.where(length > 0, jnp.argmin(load), lanes)
        following = following.at[last.at[lane].get(mode="fill", fill_value=len(following))].set(client, mode="drop")
        load, last = load.at[lane].add(length, mode="drop"), last.at[lane].set(client, mode="drop")
        return load, last, following, lane_of.at[client].set(lane)

    placed = (jnp.zeros(lanes, jnp.int32), begin, jnp.full(count + 1 + lanes, count), jnp.full(count, lanes))
    _, _, following, lane_of = jax.lax.fori_loop(0, count, place, placed)
    return Queues(following[count + 1 :], following[: count + 1], lane_of)


class State(NamedTuple):
    client: jax.Array  # [L] whom a lane works for; K for nobody
    step: jax.Array  # [L] the client's next
    local: Local
    sums: Sums


def run(
    queues: Queues,
    lengths: jax.Array,
    *,
    take_up: Callable[[jax.Array], Local],
    step: Callable[[Local, jax.Array, jax.Array, jax.Array], Local],
    hand_in: Callable[[Sums, Local, jax.Array, jax.Array], Sums],
    sums: Sums,
) -> Sums:
    """Runs all lanes to their end, and returns what was handed in.

    take_up(client) -> what a lane starts the client with.
    step(local, client, number, is_there) -> local after the client's step of that number; with is_there False it must
      change nothing, as the lane has come to its end.
    hand_in(sums, local [L, ...], client [L], done [L]) -> sums with what those of the lanes give that are done.
    take_up and step are written for one lane, and vmapped.
    """
    nobody = len(lengths)
    lengths = jnp.append(lengths, 0)

    def known(client: jax.Array) -> jax.Array:
        return jnp.minimum(client, nobody - 1)

    def goes_on(state: State) -> jax.Array:
        return jnp.any(state.client < nobody)

    def advance(state: State) -> State:
        client, number, local, sums = state
        is_there = client < nobody
        local = jax.vmap(step)(local, known(client), number, is_there)
        number = number + is_there
        done = is_there & (number == lengths[client])
        coming = jnp.where(done, queues.following[client], client)

        def change(local: Local, sums: Sums) -> tuple[Local, Sums]:
            sums = hand_in(sums, local, known(client), done)
            fresh = jax.vmap(take_up)(known(coming))
            return jax.tree.map(lambda new, old: jnp.where(like(done, new), new, old), fresh, local), sums

        # Most steps are not a client's last, and go on with what is there.
        with jax.named_scope(CHANGE):
            local, sums = jax.lax.cond(jnp.any(done), change, lambda *same: same, local, sums)
        return State(coming, jnp.where(done, 0, number), local, sums)

    start = State(queues.first, jnp.zeros_like(queues.first), jax.vmap(take_up)(known(queues.first)), sums)
    with jax.named_scope(LANES):
        return jax.lax.while_loop(goes_on, advance, start).sums


def like(mask: jax.Array, array: jax.Array) -> jax.Array:
    """[L] -> [L, 1, ...], to choose whole entries of an array [L, ...]."""
    return mask.reshape(-1, *(1,) * (array.ndim - 1))
