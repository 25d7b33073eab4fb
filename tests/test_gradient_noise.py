from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import CLASSES, DIM, FEATURES, LOGITS, linear_model

from fedss_jax import methods, sampling
from fedss_jax.analysis import gradient_noise
from fedss_jax.losses import normalize
from fedss_jax.types import Theta, UserError

MODEL = linear_model()
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(8, FEATURES)).astype(np.float32)
LABELS = np.array([3, 3, 5, 7, 7, 7, 11, 20])
POSITIVES = [3, 5, 7, 11, 20]
THETA = Theta(MODEL.init(jax.random.key(1)), jax.random.normal(jax.random.key(2), (CLASSES, DIM)))


def measure(num_negatives, clients=4, batches=((IMAGES, LABELS),)):
    return gradient_noise.measure(MODEL, LOGITS, THETA, batches, num_negatives=num_negatives, clients=clients)


def test_with_all_other_classes_as_negatives_there_is_no_noise():
    rest = CLASSES - len(POSITIVES)
    found = measure([rest - 1, rest])
    assert max(float(x[0]) for x in found[rest]) < 1e-5
    assert min(float(x[0]) for x in found[rest - 1]) > 1e-4


def test_more_negatives_and_more_clients_mean_less_noise():
    batches = [(np.roll(IMAGES, i, axis=1), LABELS) for i in range(8)]
    found = measure([1, 12], batches=batches)
    more_clients = measure([1], clients=64, batches=batches)[1]
    for few, many, others in zip(found[1], found[12], more_clients):
        assert len(few) == 8 and few.mean() > many.mean() and few.mean() > others.mean()


def plain_loss(theta, negatives):
    """The paper's loss of one client, written out; negatives None for the full softmax."""
    chosen = list(range(CLASSES)) if negatives is None else [*POSITIVES, *negatives]
    embeddings = normalize(IMAGES @ theta.encoder["A"])
    rows = theta.class_matrix
    total = 0.0
    for x, label in zip(embeddings, LABELS):
        log_sum = 0.0
        for j in chosen:
            o = 20 * jnp.dot(x, rows[j]) / jnp.linalg.norm(rows[j])
            if negatives is not None and j not in POSITIVES:
                o -= jnp.log(len(negatives) / (CLASSES - len(POSITIVES)))
            log_sum += jnp.exp(o)
        total += jnp.log(log_sum) - 20 * jnp.dot(x, rows[label]) / jnp.linalg.norm(rows[label])
    return total / len(LABELS)


def test_noise_by_the_papers_formulas_written_out():
    m, clients = 3, 2
    keys = jax.random.split(jax.random.fold_in(jax.random.key(0), 0), clients)
    padded = jnp.array([*POSITIVES, *[CLASSES] * 3])
    full = jax.grad(lambda t: plain_loss(t, None))(THETA)
    drawn = [
        np.asarray(sampling.negatives(key, padded, jnp.asarray(5), CLASSES, jnp.asarray(m), m)).tolist() for key in keys
    ]
    assert drawn[0] != drawn[1] and not {*drawn[0], *drawn[1]} & set(POSITIVES)
    each = [jax.grad(lambda t, own=own: plain_loss(t, own))(THETA) for own in drawn]
    found = measure([m], clients)[m]
    for exact, parts, l1, relative in (
        (full.encoder["A"], [g.encoder["A"] for g in each], found.encoder_l1, found.encoder_relative),
        (full.class_matrix, [g.class_matrix for g in each], found.class_matrix_l1, found.class_matrix_relative),
    ):
        difference = np.asarray(exact) - np.mean(parts, axis=0)
        assert l1[0] == pytest.approx(np.abs(difference).mean(), rel=1e-3)
        assert relative[0] == pytest.approx(np.linalg.norm(difference) / np.linalg.norm(exact), rel=1e-3)


def test_too_many_negatives_are_refused():
    with pytest.raises(UserError, match="19 negatives are too many: batches leave 18 other classes"):
        measure([2, 19])


def test_the_update_is_that_of_the_engine():
    """One client, one step of rate 1 on one whole batch: what it hands in is the gradient."""
    from fedss_jax.client import Batch, LocalTraining, batch_loss
    from fedss_jax.data.augment import UNCHANGED

    method = methods.fullsoftmax()
    training = LocalTraining(MODEL, method, UNCHANGED, 1.0, len(LABELS), 1, LOGITS, CLASSES)
    request = method.request(jax.random.key(0), None, CLASSES)
    batch = Batch(jnp.asarray(IMAGES), jnp.asarray(LABELS), jnp.ones(len(LABELS)))
    summed = jax.grad(lambda theta: batch_loss(training, theta, request, batch))(THETA)
    keys = jax.random.split(jax.random.key(0), 1)
    found = gradient_noise.update(MODEL, LOGITS, method, THETA, IMAGES, LABELS, keys)
    np.testing.assert_allclose(found.class_matrix, summed.class_matrix / len(LABELS), atol=1e-5)
