from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedss_jax import losses, methods
from fedss_jax.types import Clients


def test_cosine_logits_by_hand():
    embeddings = jnp.array([[1.0, 0.0], [0.6, 0.8]])
    rows = jnp.array([[3.0, 0.0], [0.0, 0.1], [-2.0, 0.0]])
    expected = 20 * np.array([[1, 0, -1], [0.6, 0.8, -0.6]])
    np.testing.assert_allclose(losses.cosine_logits(embeddings, rows, 20.0), expected, rtol=1e-6, atol=1e-6)


def test_normalize_leaves_a_zero_row_and_its_gradient_at_zero():
    x = jnp.array([[0.0, 0.0], [3.0, 4.0]])
    np.testing.assert_allclose(losses.normalize(x), [[0, 0], [0.6, 0.8]], rtol=1e-6)
    gradient = jax.grad(lambda x: jnp.sum(losses.normalize(x)[:, 0]))(x)
    assert jnp.isfinite(gradient).all() and (gradient[0] == 0).all()


def test_sampled_softmax_by_hand():
    logits = jnp.array([[1.0, 2.0, 0.5, 9.0]])
    competes = jnp.array([True, False, True, False])
    correction = jnp.array([0.0, 0.0, math.log(0.25), 0.0])
    # The target, class 1, takes part though `competes` leaves it out; class 3 does not.
    total = math.exp(1) + math.exp(2) + math.exp(0.5) / 0.25
    loss = losses.sampled_softmax(logits, jnp.arange(4) == jnp.array([[1]]), competes, correction)
    np.testing.assert_allclose(loss, [math.log(total) - 2], rtol=1e-6)


def test_a_client_without_classes_gives_no_nan():
    nobody = jnp.zeros(3, bool)
    loss, gradient = jax.value_and_grad(
        lambda logits: jnp.sum(losses.sampled_softmax(logits, jnp.arange(3) == 0, nobody, jnp.zeros(3)))
    )(jnp.ones((1, 3)))
    assert loss == 0 and jnp.isfinite(gradient).all()


@pytest.mark.parametrize("m", [3, 20])
def test_the_estimated_partition_function_is_unbiased(m):
    """The mean over draws of the sum of exp(o') is the sum of exp(o) over all classes; uncorrected, it is far off."""
    n, positives = 60, jnp.array([4, 9, 33, 50])
    logits = jnp.asarray(np.random.default_rng(0).normal(size=n))
    client = Clients(jnp.asarray(0), jnp.asarray(1), jnp.zeros(1, int), positives, jnp.asarray(4))
    full = float(jnp.sum(jnp.exp(logits)))

    def estimate(key, method):
        request = method.request(key, client, n)
        return jnp.sum(jnp.exp(logits[request.classes] - request.log_inclusion), where=request.valid)

    keys = jax.random.split(jax.random.key(1), 20_000)
    for correct in (True, False):
        method = methods.create("fedss", {"num_negatives": m, "correct_logits": correct})
        estimates = np.asarray(jax.jit(jax.vmap(lambda key: estimate(key, method)))(keys))  # noqa: B023
        off_by = abs(estimates.mean() - full) / (estimates.std() / math.sqrt(len(keys)))
        assert (off_by < 4) == correct, (estimates.mean(), full)
