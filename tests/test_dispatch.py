"""Rounds are sent ahead, in dispatches of the right size, and each is told once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedss_jax import dispatch
from fedss_jax.dispatch import Dispatcher
from fedss_jax.round import RoundStats
from fedss_jax.types import Resident


class Rounds:
    """In the place of compiled rounds: adds up numbers of rounds, and remembers how many it was asked for."""

    several_rounds = True

    def __init__(self, most=64):
        self.most, self.dispatches = most, []

    def stored(self, round):
        self.asked_for = round
        return Resident(jnp.zeros(()))

    def __call__(self, count, state, stored, *inputs):
        assert self.asked_for == state and count <= self.most
        self.dispatches.append(int(count))
        numbers = np.zeros(self.most)
        numbers[: int(count)] = np.arange(int(state) + 1, int(state + count) + 1)
        return state + count, jax.tree.map(jnp.asarray, RoundStats(*[numbers] * len(RoundStats._fields)))


def run(rounds, until, fixed=0):
    dispatcher = Dispatcher(rounds, jnp.int32(0), rounds, (), fixed)
    told = []
    for stop in until:
        told += [(round, float(stats.loss)) for round, stats in dispatcher.run_to(stop)]
        assert dispatcher.state == stop
    return told


@pytest.mark.parametrize(("fixed", "dispatches"), [(3, [3, 3, 1, 3, 1]), (1, [1] * 11), (64, [7, 4])])
def test_a_fixed_number_of_rounds_is_sent_and_never_beyond_an_evaluation(fixed, dispatches):
    rounds = Rounds()
    assert run(rounds, [7, 11], fixed) == [(i, i) for i in range(1, 12)]
    assert rounds.dispatches == dispatches


def test_short_rounds_go_many_at_a_time():
    rounds = Rounds()
    assert run(rounds, [500]) == [(i, i) for i in range(1, 501)]
    assert rounds.dispatches[0] == 1 and max(rounds.dispatches) == dispatch.MOST
    assert len(rounds.dispatches) < 60


def test_long_rounds_go_one_at_a_time(monkeypatch):
    monkeypatch.setattr(dispatch, "SECONDS", 0.0)
    rounds = Rounds()
    run(rounds, [20])
    assert rounds.dispatches == [1] * 20


def test_streamed_rounds_go_one_at_a_time():
    rounds = Rounds()
    rounds.several_rounds = False
    run(rounds, [5])
    assert rounds.dispatches == [1] * 5


def test_it_goes_on_after_rounds_that_are_done_and_stops_when_it_is_told():
    rounds, asked = Rounds(), []

    def stop():
        asked.append(len(rounds.dispatches))
        return len(rounds.dispatches) == 3

    dispatcher = Dispatcher(rounds, jnp.int32(40), rounds, (), 2, done=40, stop=stop)
    told = [(round, float(stats.loss)) for round, stats in dispatcher.run_to(100)]
    assert told == [(i, i) for i in range(41, 47)] and dispatcher.state == 46  # what was sent is read
    assert dispatcher.stopped and asked == [0, 1, 2, 3]
    assert list(dispatcher.run_to(100)) == [] and len(asked) == 4
