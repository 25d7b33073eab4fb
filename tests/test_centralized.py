from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
from conftest import CLASSES, LOGITS, linear_model, make_server
from reference import batch_step, jitted
from test_round import OPTIONS, ROOT, start

from fedss_jax import centralized, methods, parallel, sampling
from fedss_jax.client import LocalTraining
from fedss_jax.data.augment import UNCHANGED


def simulate(store, population, *, devices=1, rounds=2, updates=3, batch_size=6):
    mesh = parallel.make_mesh(jax.devices()[:devices])
    method = methods.create("centralized", OPTIONS)
    training = LocalTraining(linear_model(), method, UNCHANGED, 0.1, batch_size, 1, LOGITS, CLASSES)
    server = make_server(mesh, method, learning_rate=0.1, options={})
    run_round = centralized.make_round(training, server, updates, mesh).several(1)
    state = server.start(start())
    inputs = parallel.replicate(mesh, (*store, population, ROOT))
    for _ in range(rounds):
        state, stats = run_round(1, state, *inputs)
    return jax.device_get((server.theta(state), state.round)), jax.tree.map(
        lambda number: number[0], jax.device_get(stats)
    )


def test_agrees_with_plain_sgd(dataset, store, population):
    (theta, round), stats = simulate(store, population)
    A, W = (np.asarray(a, np.float64) for a in (start().encoder["A"], start().class_matrix))
    size = len(dataset.train)
    for t in range(2):
        loss = 0.0
        for u in range(3):
            draw_key, _ = jax.random.split(sampling.client_key(ROOT, jnp.asarray(t), jnp.asarray(u)))
            chosen = jitted(sampling.distinct, 3)(draw_key, size, 6, 6)
            batch = [(dataset.train.images[i].astype(np.float64), int(dataset.train.labels[i])) for i in chosen]
            A, W, one = batch_step(A, W, batch, range(CLASSES), {}, 20.0, 0.1)
            loss += one
    np.testing.assert_allclose(theta.encoder["A"], A, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(theta.class_matrix, W, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(stats.loss, loss, rtol=1e-4)
    assert round == 2 and stats.examples == 18 and stats.clients is None


def test_one_two_and_eight_devices_agree(store, population):
    alone, _ = simulate(store, population)
    for devices in (2, 8):
        together, _ = simulate(store, population, devices=devices)
        chex.assert_trees_all_close(together, alone, rtol=1e-4, atol=1e-5)


def test_a_batch_larger_than_the_data_is_all_of_it(store, population):
    _, stats = simulate(store, population, rounds=1, updates=1, batch_size=1000)
    assert stats.examples == 63


def test_as_many_updates_as_a_cohort_makes(population):
    training = LocalTraining(linear_model(), methods.centralized(), UNCHANGED, 0.1, 4, 2, LOGITS, CLASSES)
    steps = -(-np.asarray(population.num_examples) // 4)
    assert centralized.updates_per_round(population, 5, training) == round(5 * 2 * steps.mean())
