from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conftest import make_server

from fedss_jax import methods, parallel
from fedss_jax.class_matrix import Wanted
from fedss_jax.rows import Dense, Lazy
from fedss_jax.server import CohortSum, make_optimizer
from fedss_jax.types import Theta, UserError

# Three classes; two clients, of which the first asks for classes 0 and 1 and the second for class 0 alone.
WANTED = Wanted(jnp.array([0, 1, 3, 4]), jnp.array([[0, 1], [0, 2]]), jnp.array([[True, True], [True, False]]))
NOBODY = Wanted(jnp.array([3, 4, 5, 6]), jnp.array([[0, 0], [0, 0]]), jnp.zeros((2, 2), bool))
COHORT = CohortSum(
    encoder={"w": jnp.array([4.0, 8.0])},
    rows=jnp.array([[8.0, 0.0], [2.0, 0.0], [0.0, 0.0], [0.0, 0.0]]),
    weight=jnp.asarray(8.0),
    row_weight=WANTED.weigh(jnp.array([2.0, 6.0])),
)


def theta():
    return Theta({"w": jnp.array([1.0, 2.0])}, jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))


def server(method=None, **options):
    return make_server(parallel.make_mesh(jax.devices()[:1]), method or methods.posonly(), 3, **options)


def step(s, state, wanted=WANTED, cohort=COHORT):
    return s.step(state, wanted, s.take(state, wanted), cohort)


def test_rows_are_added_up_over_the_clients_that_hold_them():
    handed_in = jnp.array([[[1.0, 2.0], [3.0, 4.0]], [[10.0, 20.0], [100.0, 100.0]]])
    np.testing.assert_allclose(WANTED.total(handed_in), [[11.0, 22.0], [3.0, 4.0], [0.0, 0.0], [0.0, 0.0]])
    np.testing.assert_allclose(COHORT.row_weight, [8.0, 2.0, 0.0, 0.0])


@pytest.mark.parametrize("every_row", [False, True])
def test_cohort_and_holder_averages_by_hand(every_row):
    for weighting, row in (("cohort", [-0.25, 1.0]), ("holders", [-1.0, 1.0])):
        s = server(dataclasses.replace(methods.posonly(), every_row=every_row), row_weighting=weighting)
        assert isinstance(s.rows, Dense if every_row else Lazy)
        state = step(s, s.start(theta()))
        encoder, class_matrix = s.theta(state)
        np.testing.assert_allclose(encoder["w"], [0.5, 1.0], atol=1e-6)
        np.testing.assert_allclose(class_matrix, [[0.0, 0.0], row, [1.0, 1.0]], atol=1e-6)
        assert state.round == 1


@pytest.mark.parametrize("every_row", [False, True])
def test_a_state_lies_as_was_told_before(every_row):
    s = server(dataclasses.replace(methods.posonly(), every_row=every_row))
    told = s.abstract(theta())
    layout = told.rows.rows.format.layout
    assert layout is None if every_row else layout.major_to_minor == (0, 1)  # row after row, if only some are picked
    for array, place in zip(jax.tree.leaves(s.start(theta())), jax.tree.leaves(told), strict=True):
        assert array.shape == place.shape and array.sharding == place.sharding
    assert s.start(theta()).rows.rows.format.layout.major_to_minor == (0, 1)


@pytest.mark.parametrize("every_row", [False, True])
def test_a_methods_own_step_comes_last_and_knows_who_was_touched(every_row):
    def after_step(rows, touched):
        return 2 * rows + jnp.where(touched, 100.0, 10.0)[:, None]

    def class_matrix(**changes):
        s = server(dataclasses.replace(methods.posonly(), every_row=every_row, **changes), options={})
        return s.theta(step(s, s.start(theta()))).class_matrix

    stepped = class_matrix()
    np.testing.assert_allclose(stepped[0], [0.0, 0.0])  # the optimizer's step
    found = class_matrix(after_step=after_step)
    np.testing.assert_allclose(found[:2], 2 * stepped[:2] + 100.0)
    np.testing.assert_allclose(found[2], 2 * stepped[2] + 10.0 if every_row else stepped[2])


@pytest.mark.parametrize("every_row", [False, True])
def test_a_methods_own_step_that_is_not_finite_is_not_taken(every_row):
    method = dataclasses.replace(methods.posonly(), after_step=lambda rows, _: rows / 0.0, every_row=every_row)
    s = server(method, options={})
    state = step(s, s.start(theta()))
    np.testing.assert_array_equal(s.theta(state).class_matrix, theta().class_matrix)
    assert int(state.steps) == 0 and int(state.round) == 1


@pytest.mark.parametrize("every_row", [False, True])
def test_momentum_goes_on_moving_rows_that_nobody_touches(every_row):
    s = server(dataclasses.replace(methods.posonly(), every_row=every_row))
    state = step(s, s.start(theta()))
    moved = s.theta(
        step(s, state, NOBODY, jax.tree.map(jnp.zeros_like, COHORT)._replace(weight=jnp.asarray(8.0)))
    ).class_matrix
    np.testing.assert_allclose(moved[0], [-0.9, 0.0], rtol=1e-6)
    np.testing.assert_allclose(moved[1], [-0.25 - 0.9 * 0.25, 1.0], rtol=1e-6)
    np.testing.assert_allclose(moved[2], [1.0, 1.0])


@pytest.mark.parametrize(
    ("name", "options", "kind"),
    [
        ("adam", {"b1": 0.9, "eps": 1e-3}, Dense),
        ("yogi", {}, Dense),
        ("adagrad", {}, Dense),
        ("lamb", {}, Dense),
        ("sgd", {"nesterov": True}, Lazy),
        ("sgd", {"nesterov": True, "momentum": 0.9}, Lazy),
        ("sgd", {"momentum": 0.9, "accumulator_dtype": "bfloat16"}, Dense),
        ("sgd", {"momentum": 1.0}, Dense),
    ],
)
def test_any_optimizer_of_optax_by_name(name, options, kind):
    s = server(optimizer=name, learning_rate=0.1, options=options)
    assert isinstance(s.rows, kind)
    found = s.theta(step(s, s.start(theta())))
    expected = getattr(optax, name)(0.1, **options)
    gradient = Theta({"w": jnp.array([0.5, 1.0])}, jnp.array([[1.0, 0.0], [0.25, 0.0], [0.0, 0.0]]))
    updates, _ = expected.update(gradient, expected.init(theta()), theta())
    np.testing.assert_allclose(found.encoder["w"], theta().encoder["w"] + updates.encoder["w"], rtol=1e-6)
    np.testing.assert_allclose(found.class_matrix, theta().class_matrix + updates.class_matrix, rtol=1e-6, atol=1e-7)
    assert float(jnp.abs(found.encoder["w"] - theta().encoder["w"]).max()) > 0


def test_unknown_optimizers_and_options_are_refused_with_the_known_names():
    with pytest.raises(UserError, match=r"'fedadam'.*adam.*yogi"):
        make_optimizer("server", "fedadam", 0.1, {})
    with pytest.raises(UserError, match=r"momentum.*optax\.adam does not take.*b1"):
        make_optimizer("server", "adam", 0.1, {"momentum": 0.9})
    with pytest.raises(UserError, match="learning_rate, which optax.sgd does not take"):
        make_optimizer("server", "sgd", 0.1, {"learning_rate": 0.9})
    with pytest.raises(UserError, match="optax.sgd does not work as server.optimizer"):
        make_optimizer("server", "sgd", 0.1, {"momentum": "fast"})
    with pytest.raises(UserError, match="optax.lbfgs does not work as server.optimizer"):
        make_optimizer("server", "lbfgs", 0.1, {})
    with pytest.raises(UserError, match="draws random numbers of its own, which a checkpoint does not keep"):
        make_optimizer("server", "noisy_sgd", 0.1, {"key": 3})


@pytest.mark.parametrize("every_row", [False, True])
def test_a_step_that_would_overflow_is_not_taken(every_row):
    s = server(dataclasses.replace(methods.posonly(), every_row=every_row), learning_rate=10.0)
    state = s.start(theta())
    huge = COHORT._replace(rows=jnp.full((4, 2), 3e38), weight=jnp.asarray(1.0))
    after = step(s, state, cohort=huge)
    assert after.round == 1 and after.steps == 0
    for new, old in zip(jax.tree.leaves(after)[2:], jax.tree.leaves(state)[2:]):
        np.testing.assert_array_equal(new, old)
    assert step(s, after).steps == 1
