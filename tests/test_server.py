from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedss_jax import methods
from fedss_jax.server import CohortSum, Server, make_optimizer
from fedss_jax.types import Theta, UserError

THETA = Theta({"w": jnp.array([1.0, 2.0])}, jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
COHORT = CohortSum(
    encoder={"w": jnp.array([4.0, 8.0])},
    rows=jnp.array([[8.0, 0.0], [2.0, 0.0], [0.0, 0.0]]),
    weight=jnp.asarray(8.0),
    row_weight=jnp.array([8.0, 2.0, 0.0]),
)


def server(weighting="cohort", optimizer=None):
    return Server(optimizer or optax.sgd(1.0, momentum=0.9), methods.posonly(), weighting)


def test_cohort_and_holder_averages_by_hand():
    for weighting, row in (("cohort", [-0.25, 1.0]), ("holders", [-1.0, 1.0])):
        s = server(weighting)
        state = s.step(s.init(THETA), COHORT)
        np.testing.assert_allclose(state.theta.encoder["w"], [0.5, 1.0])
        np.testing.assert_allclose(state.theta.class_matrix, [[0.0, 0.0], row, [1.0, 1.0]])
        assert state.round == 1


def test_a_methods_own_step_comes_last_and_knows_who_was_touched():
    seen = []

    def after_step(class_matrix, touched):
        seen.append((class_matrix, touched))
        return class_matrix + 100.0

    s = Server(optax.sgd(1.0), dataclasses.replace(methods.posonly(), after_step=after_step))
    state = s.step(s.init(THETA), COHORT)
    ((class_matrix, touched),) = seen
    assert touched.tolist() == [True, True, False]
    np.testing.assert_allclose(class_matrix[0], [0.0, 0.0])  # the optimizer's step has been taken
    np.testing.assert_allclose(state.theta.class_matrix, class_matrix + 100.0)


def test_momentum_goes_on_moving_rows_that_nobody_touches():
    s = server()
    state = s.step(s.init(THETA), COHORT)
    nothing = jax.tree.map(jnp.zeros_like, COHORT)
    moved = s.step(state, nothing).theta.class_matrix
    np.testing.assert_allclose(moved[0], [-0.9, 0.0])
    np.testing.assert_allclose(moved[1], [-0.25 - 0.9 * 0.25, 1.0])
    np.testing.assert_allclose(moved[2], [1.0, 1.0])


@pytest.mark.parametrize(
    ("name", "options"),
    [("adam", {"b1": 0.9, "eps": 1e-3}), ("yogi", {}), ("adagrad", {}), ("lamb", {}), ("sgd", {"nesterov": True})],
)
def test_any_optimizer_of_optax_by_name(name, options):
    s = server(optimizer=make_optimizer("server", name, 0.1, options))
    theta = s.step(s.init(THETA), COHORT).theta
    expected = getattr(optax, name)(0.1, **options)
    gradient = Theta({"w": jnp.array([0.5, 1.0])}, COHORT.rows / 8.0)
    updates, _ = expected.update(gradient, expected.init(THETA), THETA)
    np.testing.assert_allclose(theta.encoder["w"], THETA.encoder["w"] + updates.encoder["w"], rtol=1e-6)
    assert float(jnp.abs(theta.encoder["w"] - THETA.encoder["w"]).max()) > 0


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
