from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import spreadout as reference_step

from fedss_jax import spreadout

N = 37


@pytest.fixture
def class_matrix():
    return jax.random.normal(jax.random.key(0), (N, 3))


def all_pairs(classes):
    return [(c, other) for c in classes for other in classes if c != other]


@pytest.mark.parametrize("block", [5, 37, 256])
@pytest.mark.parametrize("touched_only", [False, True])
def test_agrees_with_a_loop_over_pairs(class_matrix, block, touched_only, monkeypatch):
    monkeypatch.setattr(spreadout, "BLOCK", block)
    touched = jnp.arange(N) % 3 == 0
    got = spreadout.step(class_matrix, touched, margin=0.6, step_size=0.1, neighbours=0, touched_only=touched_only)
    classes = [c for c in range(N) if touched[c] or not touched_only]
    expected = reference_step(np.asarray(class_matrix, np.float64), 0.6, 0.1, all_pairs(classes))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(expected - np.asarray(class_matrix)).max() > 0.01


def test_only_the_nearest_count(class_matrix):
    got = spreadout.step(class_matrix, jnp.ones(N, bool), margin=0.9, step_size=0.1, neighbours=4, touched_only=False)
    W = np.asarray(class_matrix, np.float64)
    unit = W / np.linalg.norm(W, axis=1, keepdims=True)
    similarity = unit @ unit.T - 2 * np.eye(N)
    pairs = [(c, int(other)) for c in range(N) for other in np.argsort(-similarity[c])[:4]]
    np.testing.assert_allclose(got, reference_step(W, 0.9, 0.1, pairs), rtol=1e-4, atol=1e-5)


def test_it_spreads_class_vectors_out():
    W = close = jnp.array([[1.0, 0.1], [1.0, -0.1]])
    for _ in range(3):
        W = spreadout.step(W, jnp.ones(2, bool), margin=0.5, step_size=0.05, neighbours=0, touched_only=False)
    assert W[0] @ W[1] < close[0] @ close[1]


def test_the_gram_matrix_never_exists_whole():
    n = 4096
    step = jax.jit(lambda W, t: spreadout.step(W, t, margin=0.5, step_size=0.1, neighbours=8, touched_only=False))
    W = jax.ShapeDtypeStruct((n, 8), jnp.float32)
    compiled = step.lower(W, jax.ShapeDtypeStruct((n,), bool)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < n * n * 4 / 2
