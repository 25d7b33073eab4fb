"""Draws are uniform, distinct, free of positives, and cost nothing that grows with n."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedss_jax import sampling

UNLIKELY = 1e-4  # a fixed seed: a fair sampler fails such a test once in ten thousand choices of it


def many(function, draws, seed=0):
    return np.asarray(jax.jit(jax.vmap(function))(jax.random.split(jax.random.key(seed), draws)))


@pytest.mark.parametrize(("population", "count", "padding"), [(6, 3, 0), (6, 3, 4), (7, 6, 0), (5, 5, 0), (9, 1, 2)])
def test_every_subset_is_equally_likely(population, count, padding):
    draw = partial(sampling.distinct, population=jnp.asarray(population), count=jnp.asarray(count))
    drawn = many(lambda key: draw(key, max_count=count + padding), 40_000)[:, :count]
    found = Counter(map(tuple, np.sort(drawn, axis=1).tolist()))
    subsets = list(combinations(range(population), count))
    assert set(found) <= set(subsets)
    if len(subsets) > 1:
        assert stats.chisquare([found[s] for s in subsets]).pvalue > UNLIKELY


def test_negatives_are_uniform_distinct_and_never_positive():
    n, m = 40, 12
    positives = jnp.array([0, 3, 4, 17, 39, n, n, n])  # three places of padding
    drawn = many(lambda key: sampling.negatives(key, positives, jnp.asarray(5), n, jnp.asarray(m), m), 20_000)
    assert all(len(set(row)) == m for row in drawn.tolist())
    counts = np.bincount(drawn.ravel(), minlength=n)
    own = [0, 3, 4, 17, 39]
    assert counts[own].sum() == 0 and len(counts) == n
    others = np.delete(counts, own)
    # Each row adds m distinct classes, so counts vary less than independent draws would: scale to chi-square.
    classes = n - len(own)
    expected = drawn.size / classes
    statistic = np.sum((others - expected) ** 2) / expected / (1 - m / classes) * (classes - 1) / classes
    p = stats.chi2.sf(statistic, classes - 1)
    assert UNLIKELY < p < 1 - UNLIKELY


def test_pairs_of_negatives_are_independent_of_the_positives_place():
    """Two-class inclusion, the second moment: every pair of non-positives is drawn equally often."""
    n, m = 9, 3
    positives = jnp.array([2, 5, n])
    drawn = many(lambda key: sampling.negatives(key, positives, jnp.asarray(2), n, jnp.asarray(m), m), 30_000)
    triples = Counter(map(tuple, np.sort(drawn, axis=1).tolist()))
    expected = list(combinations([0, 1, 3, 4, 6, 7, 8], 3))
    assert set(triples) == set(expected)
    assert stats.chisquare([triples[t] for t in expected]).pvalue > UNLIKELY


def test_all_that_is_not_positive_can_be_drawn():
    positives = jnp.array([1, 4])
    drawn = sampling.negatives(jax.random.key(0), positives, jnp.asarray(2), 9, jnp.asarray(7), 7)
    assert sorted(drawn.tolist()) == [0, 2, 3, 5, 6, 7, 8]


def test_ten_million_classes_cost_what_a_thousand_do():
    def program(n):
        positives = jnp.array([5, 77, 400])
        args = (jax.random.key(0), positives, jnp.asarray(3))
        return jax.jit(lambda *a: sampling.negatives(*a, n, jnp.asarray(50), 50)).lower(*args).compile()

    small, large = program(1_000), program(10_000_000)
    assert large.memory_analysis().temp_size_in_bytes == small.memory_analysis().temp_size_in_bytes
    assert large.cost_analysis()["flops"] == small.cost_analysis()["flops"]
    drawn = np.asarray(large(jax.random.key(0), jnp.array([5, 77, 400]), jnp.asarray(3)))
    assert len(set(drawn.tolist())) == 50 and drawn.min() >= 0 and drawn.max() < 10_000_000
    assert drawn.max() > 5_000_000  # the far end is reached


def test_integers_below_a_limit_are_exact():
    rng = np.random.default_rng(0)
    limits = np.concatenate([rng.integers(1, 2**31 - 1, 500), [1, 2, 3, 2**31 - 1]])
    bits = jax.random.bits(jax.random.key(1), (len(limits), 2), jnp.uint32)
    drawn = np.asarray(sampling._below(bits, jnp.asarray(limits)))
    words = [(int(high) << 32 | int(low)) for high, low in np.asarray(bits)]
    assert drawn.tolist() == [word % int(limit) for word, limit in zip(words, limits)]


def test_padding_does_not_change_what_is_drawn():
    for function, size, arguments in ((sampling.distinct, 3, (100, 8)), (sampling.shuffled, 2, (8,))):
        jitted = jax.jit(function, static_argnums=size)
        narrow, wide = (jitted(jax.random.key(3), *arguments, width) for width in (8, 30))
        assert narrow.tolist() == wide[:8].tolist()


def test_shuffled_orders_are_uniform():
    drawn = many(lambda key: sampling.shuffled(key, jnp.asarray(4), 7), 24_000)[:, :4]
    found = Counter(map(tuple, drawn.tolist()))
    assert len(found) == 24 and stats.chisquare(list(found.values())).pvalue > UNLIKELY


def test_a_cohort_is_distinct_and_every_client_is_as_likely():
    drawn = many(lambda key: sampling.cohort(key, 10, 4), 20_000)
    assert all(len(set(row)) == 4 for row in drawn.tolist())
    found = Counter(map(tuple, drawn.tolist()))
    assert len(found) == 210 and stats.chisquare(list(found.values())).pvalue > UNLIKELY


def test_clients_and_rounds_have_keys_of_their_own():
    root = jax.random.key(0)
    keys = [
        jax.random.key_data(sampling.client_key(root, jnp.asarray(t), jnp.asarray(k))).tolist()
        for t in range(3)
        for k in range(3)
    ]
    assert len({tuple(key) for key in keys}) == 9
