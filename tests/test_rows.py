"""W at the server: moved row by row, and spread over devices, with the numbers of optax on all of it."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fedss_jax import class_matrix, parallel
from fedss_jax.class_matrix import Sampled
from fedss_jax.rows import Dense, Layout, Lazy

N, D, WIDTH = 7, 3, 4  # classes, dimensions, classes that are asked for in a round at the most


def layout(devices=1, n=N):
    return Layout(parallel.make_mesh(jax.devices()[:devices]), n, sharded=devices > 1)


def keep(rows, touched):
    return rows


@jax.jit
@jax.vmap
def wanted(padded, valid):
    """One client's requests [R, WIDTH] for some classes, round by round."""
    return Sampled(padded[None], valid[None], valid[None], jnp.zeros((1, WIDTH))).wanted(N)


def touch_patterns(rounds):
    """Rounds in which a class is asked for: never, once, in every round, after long gaps, or at random."""
    return [
        st.just([]),
        st.integers(0, rounds - 1).map(lambda r: [r]),
        st.just(list(range(rounds))),
        st.just([0, rounds // 2, rounds - 1]),
        st.lists(st.integers(0, rounds - 1), max_size=rounds, unique=True),
    ]


@dataclasses.dataclass(frozen=True)
class History:
    """For each round, the classes that are asked for, and gradients [WIDTH, D] for them."""

    classes: list[list[int]]
    gradients: np.ndarray

    def dense(self, round):
        gradient = np.zeros((N, D), np.float32)
        gradient[self.classes[round]] = self.gradients[round][: len(self.classes[round])]
        return gradient


@st.composite
def histories(draw, rounds):
    chosen = [draw(st.one_of(touch_patterns(rounds))) for _ in range(N)]
    by_round = [[c for c in range(N) if round in chosen[c]][:WIDTH] for round in range(rounds)]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return History(by_round, rng.normal(size=(rounds, WIDTH, D)).astype(np.float32))


ROUNDS = 300
START = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)


# No shrinking: every example compiles two programs.
@settings(max_examples=20, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    history=histories(ROUNDS),
    momentum=st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.99]),
    learning_rate=st.sampled_from([0.01, 0.3, 1.0, 2.0]),
    nesterov=st.booleans(),
)
def test_lazy_momentum_is_that_of_optax(history, momentum, learning_rate, nesterov):
    lazy = Lazy(layout(), learning_rate, momentum, nesterov)
    optimizer = optax.sgd(learning_rate, momentum or None, nesterov)
    padded = np.array([np.resize(classes or [0], WIDTH) for classes in history.classes])
    requests = wanted(padded, np.array([np.arange(WIDTH) < len(classes) for classes in history.classes]))

    @jax.jit
    def run_lazy(kept):
        def one(kept, inputs):
            round, request, gradient = inputs
            taken = lazy.take(kept, request, round)
            kept, _ = lazy.step(kept, taken, request, gradient, request.classes < N, keep, jnp.asarray(True))
            return kept, (taken.rows, lazy.current(kept, round + 1))

        kept, found = jax.lax.scan(one, kept, (jnp.arange(ROUNDS), requests, jnp.asarray(history.gradients)))
        return lazy.current(kept, jnp.asarray(ROUNDS)), found

    @jax.jit
    def run_dense(rows):
        def one(state, gradient):
            rows, opt_state = state
            updates, opt_state = optimizer.update(gradient, opt_state, rows)
            return (rows + updates, opt_state), (rows, rows + updates)

        gradients = jnp.asarray([history.dense(round) for round in range(ROUNDS)])
        (rows, _), found = jax.lax.scan(one, (rows, optimizer.init(rows)), gradients)
        return rows, found

    end, (taken, after) = run_lazy(lazy.init(jnp.asarray(START)))
    expected, (expected_before, expected_after) = run_dense(jnp.asarray(START))
    # Rounding errors of optax's own sums grow with what was added up.
    scale = np.abs(np.asarray(expected_after)).max() + learning_rate * 10
    np.testing.assert_allclose(end, expected, atol=3e-6 * scale)
    np.testing.assert_allclose(after, expected_after, atol=3e-6 * scale)
    taken, expected_before = np.asarray(taken), np.asarray(expected_before)
    for round, classes in enumerate(history.classes):
        expected_rows = expected_before[round][np.asarray(classes, int)]
        np.testing.assert_allclose(taken[round][: len(classes)], expected_rows, atol=3e-6 * scale)


def test_a_request_that_two_clients_share_is_made_once():
    request = Sampled(
        classes=jnp.array([[5, 2, 0], [2, 6, 5]]),
        valid=jnp.array([[True, True, False], [True, True, True]]),
        positive=jnp.ones((2, 3), bool),
        log_inclusion=jnp.zeros((2, 3)),
    )
    found = request.wanted(N)
    assert found.classes.tolist() == [2, 5, 6, N, N + 4, N + 5]
    assert found.classes[found.place].tolist() == [[5, 2, N], [2, 6, 5]]


def test_no_more_rows_are_wanted_than_there_are():
    request = Sampled(*(jnp.broadcast_to(a, (9, N)) for a in (jnp.arange(N), jnp.ones(N, bool), True, 0.0)))
    assert request.wanted(N).classes.tolist() == [*range(N), 2 * N]


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_rows_are_found_and_changed_on_whichever_device_they_are(devices):
    alone, spread = layout(1), layout(devices)
    rows = {"a": jnp.arange(N * D, dtype=jnp.float32).reshape(N, D), "b": jnp.arange(N)}
    placed = jax.tree.map(
        lambda a: jax.device_put(jnp.pad(a, [(0, spread.num_rows - N)] + [(0, 0)] * (a.ndim - 1)), spread.sharding),
        rows,
    )
    classes = jnp.array([0, 3, 4, 6, N, N + 5])
    expected, found = alone.take(rows, classes), spread.take(placed, classes)
    for name in rows:
        np.testing.assert_array_equal(found[name][:4], expected[name][:4])
    new = jax.tree.map(lambda a: a + 100, expected)
    changed, spread_changed = alone.put(rows, classes, new), spread.put(placed, classes, new)
    for name in rows:
        np.testing.assert_array_equal(spread_changed[name][:N], changed[name])
        assert spread_changed[name].sharding.spec == spread.spec
    assert changed["b"].tolist() == [100, 1, 2, 103, 104, 5, 106]


@pytest.mark.parametrize("devices", [1, 2, 8])
@pytest.mark.parametrize("n", [5, 40, 43])
def test_w_starts_the_same_on_any_devices(devices, n, monkeypatch):
    monkeypatch.setattr(class_matrix, "BLOCK", 16)
    expected = class_matrix.init(jax.random.key(3), n, D, 0.5)
    np.testing.assert_allclose(np.linalg.norm(expected, axis=1), 0.5, rtol=1e-5)
    assert len(np.unique(np.asarray(expected), axis=0)) == n
    np.testing.assert_array_equal(layout(devices, n).init(jax.random.key(3), D, 0.5)[:n], expected)


def test_a_small_w_is_drawn_at_once():
    at_once = jax.random.normal(jax.random.key(3), (N, D))
    at_once = at_once / jnp.linalg.norm(at_once, axis=1, keepdims=True)
    np.testing.assert_allclose(class_matrix.init(jax.random.key(3), N, D, 1.0), at_once, rtol=1e-5)


@pytest.mark.parametrize("kind", [Lazy, Dense])
def test_no_device_holds_all_of_w_or_of_an_update(kind):
    """In the compiled round's memory and traffic: all is far smaller than W."""
    n, width, devices = 80_000, 16, 8
    place = layout(devices, n)
    rows = Lazy(place, 1.0, 0.9, False) if kind is Lazy else Dense(place, optax.adam(0.1))
    shapes = jax.eval_shape(rows.init, jax.ShapeDtypeStruct((n, D), jnp.float32))
    kept = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=place.sharding_of(a)), shapes)

    def step(kept, round, classes, gradient):
        request = Sampled(classes, jnp.ones((2, width), bool), jnp.ones((2, width), bool), jnp.zeros((2, width)))
        found = request.wanted(n)
        taken = rows.take(kept, found, round)
        may = jnp.max(gradient) < 5
        return rows.step(kept, taken, found, found.total(gradient), found.classes < n, keep, may), taken.rows

    arguments = kept, jnp.asarray(3), jnp.zeros((2, width), int), jnp.zeros((2, width, D))
    compiled = jax.jit(step, donate_argnums=0).lower(*arguments).compile()
    share, whole = n // devices * D * 4, n * D * 4
    memory = compiled.memory_analysis()
    assert memory.argument_size_in_bytes < 3.5 * share
    assert memory.temp_size_in_bytes < (0.1 if kind is Lazy else 3) * share < whole
