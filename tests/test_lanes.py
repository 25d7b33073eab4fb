"""Lists of clients, and what a lane does with them."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedss_jax import lanes
from fedss_jax.packing import longest_lane


def lists(queues: lanes.Queues) -> list[list[int]]:
    """The clients of each lane, in order."""
    nobody = len(queues.following) - 1
    found = []
    for first in queues.first.tolist():
        found.append([])
        while first != nobody:
            found[-1].append(first)
            first = int(queues.following[first])
    return found


def test_the_longest_client_goes_to_the_emptiest_lane():
    queues = lanes.pack(jnp.array([2, 7, 3, 5]), 2)
    assert lists(queues) == [[1, 0], [3, 2]]
    assert queues.lane.tolist() == [0, 0, 1, 1]


def test_with_enough_lanes_everyone_has_one():
    queues = lanes.pack(jnp.array([2, 0, 3]), 4)
    assert lists(queues) == [[0], [], [2], []]
    assert queues.lane.tolist() == [0, 4, 2]


def test_a_client_without_steps_is_on_no_lane():
    queues = lanes.pack(jnp.array([0, 4, 0, 1, 2]), 2)
    assert lists(queues) == [[1], [4, 3]]
    assert queues.lane.tolist() == [2, 0, 2, 1, 1]


@pytest.mark.parametrize("count", [1, 5, 40])
def test_every_client_is_on_one_lane_and_none_is_much_too_long(count):
    rng = np.random.default_rng(count)
    for width in (1, 2, 3, 7):
        lengths = rng.integers(0, 30, count)
        queues = lanes.pack(jnp.asarray(lengths), width)
        found = lists(queues)
        assert sorted(itertools.chain(*found)) == np.flatnonzero(lengths).tolist()
        for lane, clients in enumerate(found):
            assert all(queues.lane[client] == lane for client in clients)
        loads = [int(lengths[clients].sum()) for clients in found]
        assert max(loads) == longest_lane(lengths, width)
        assert max(loads) <= 4 / 3 * max(lengths.max(), -(-int(lengths.sum()) // width)) + 1


@pytest.mark.parametrize("width", [1, 3, 6])
def test_each_client_makes_its_own_steps_in_order_and_hands_in_once(width):
    lengths = jnp.array([3, 1, 0, 5, 2, 2])
    queues = lanes.pack(lengths, width)
    # A lane's work is a number whose digits are the steps made; they show order, number and whose they were.
    sums = lanes.run(
        queues,
        lengths,
        take_up=lambda client: 100 * (client + 1),
        step=lambda local, client, number, is_there: jnp.where(is_there, local * 10 + number + 1, local),
        hand_in=lambda sums, local, client, done: (
            sums[0].at[jnp.where(done, client, 6)].set(local, mode="drop"),
            sums[1].at[jnp.where(done, client, 6)].add(1, mode="drop"),
        ),
        sums=(jnp.zeros(6, int), jnp.zeros(6, int)),
    )
    assert sums[0].tolist() == [100123, 2001, 0, 40012345, 50012, 60012]
    assert sums[1].tolist() == [1, 1, 0, 1, 1, 1]


def test_the_loop_is_as_long_as_the_longest_lane():
    steps = []

    def step(local, client, number, is_there):
        jax.debug.callback(lambda there: steps.append(bool(there)), is_there)
        return local

    lanes.run(
        lanes.pack(jnp.array([4, 1, 1, 1]), 2),
        jnp.array([4, 1, 1, 1]),
        take_up=lambda client: jnp.zeros(()),
        step=step,
        hand_in=lambda sums, *_: sums,
        sums=jnp.zeros(()),
    )
    jax.effects_barrier()
    assert len(steps) == 8 and sum(steps) == 7
