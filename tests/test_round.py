"""The round program against a literal Algorithm 1, and what must never change its numbers."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from conftest import CLASSES, DIM, LOGITS, linear_model, make_server

from fedss_jax import class_matrix, methods, models, parallel
from fedss_jax import round as round_module
from fedss_jax.client import LocalTraining
from fedss_jax.crew import ALONE, Together
from fedss_jax.data.augment import UNCHANGED, Jitter, jittered
from fedss_jax.defence import UNCLIPPED
from fedss_jax.faults import NO_FAULTS
from fedss_jax.round import Packing, make_round
from fedss_jax.types import Clients, Model, Resident, Theta, Transform

OPTIONS = dict(
    num_negatives=5,
    correct_logits=True,
    extra_negatives=False,
    margin=0.5,
    spreadout_step=0.1,
    neighbours=0,
    touched_only=False,
)
ROOT = jax.random.key(11)


def start() -> Theta:
    key = jax.random.key(5)
    return Theta(linear_model().init(key), class_matrix.init(jax.random.fold_in(key, 1), CLASSES, DIM, 0.5))


def simulate(
    store,
    population,
    name="fedss",
    *,
    devices=1,
    rounds=3,
    K=5,
    epochs=1,
    batch_size=4,
    weighting="cohort",
    lanes=0,
    part_size=0,
    sharded=True,
    faults=NO_FAULTS,
    clipping=UNCLIPPED,
    model=None,
    theta=None,
    **options,
):
    """The engine's theta and stats after some rounds. lanes: 0 for one for each client."""
    mesh = parallel.make_mesh(jax.devices()[:devices])
    method = methods.create(name, OPTIONS | options)
    server = make_server(mesh, method, sharded=sharded, row_weighting=weighting, clipping=clipping)
    layout = server.rows.layout
    crew = Together(layout) if method.requests_all and layout.sharded else ALONE
    training = LocalTraining(
        model or linear_model(), method, UNCHANGED, 0.1, batch_size, epochs, LOGITS, CLASSES, part_size, crew
    )
    run_round = make_round(training, server, Packing(K, lanes or -(-K // devices)), mesh, faults).several(1)
    state = server.start(theta or start())
    inputs = parallel.replicate(mesh, (*store, population, ROOT))
    stats = []
    for _ in range(rounds):
        state, one = run_round(1, state, *inputs)
        stats.append(jax.tree.map(lambda number: number[0], jax.device_get(one)))
    return jax.device_get(server.theta(state)), stats


@pytest.mark.parametrize(
    ("name", "options", "reference_options"),
    [
        ("fedss", {}, {}),
        ("fedss", {"correct_logits": False}, {"correct_logits": False}),
        ("fedss", {"weighting": "holders"}, {"row_weighting": "holders"}),
        ("fedss", {"epochs": 3}, {"epochs": 3}),
        ("fedss", {"batch_size": 100}, {"batch_size": 100}),
        ("negonly", {}, {}),
        ("negonly", {"extra_negatives": True}, {"extra_negatives": True}),
        ("posonly", {}, {}),
        ("fedaws", {}, {}),
        ("fullsoftmax", {}, {}),
    ],
)
def test_agrees_with_a_literal_algorithm_1(dataset, store, population, name, options, reference_options):
    theta, stats = simulate(store, population, name, **options)
    A, W, losses = reference.run(
        name, start().encoder["A"], start().class_matrix, dataset, ROOT, rounds=3, K=5, **reference_options
    )
    np.testing.assert_allclose(theta.encoder["A"], A, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(theta.class_matrix, W, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose([s.loss / s.examples for s in stats], losses, rtol=1e-4)
    assert np.abs(A - np.asarray(start().encoder["A"])).max() > 0.01  # something was learnt


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedss", {"K": 8, "weighting": "holders"}),
        ("fedaws", {"touched_only": True, "neighbours": 3}),
        *((name, {}) for name in methods.METHODS if name != "centralized"),
    ],
)
def test_one_two_and_eight_devices_agree(store, population, name, options):
    alone, _ = simulate(store, population, name, devices=1, **options)
    for devices in (2, 8):
        together, _ = simulate(store, population, name, devices=devices, **options)
        chex.assert_trees_all_close(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["fedss", "fullsoftmax"])
def test_all_rows_on_every_device_or_a_share_give_the_same_numbers(store, population, name):
    shared, _ = simulate(store, population, name, devices=4)
    whole, _ = simulate(store, population, name, devices=4, sharded=False)
    chex.assert_trees_all_close(whole, shared, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["fedss", "negonly", "fullsoftmax"])
def test_padding_changes_no_number(store, population, name):
    wide = population._replace(
        examples=jnp.pad(population.examples, ((0, 0), (0, 21))),
        positives=jnp.pad(population.positives, ((0, 0), (0, 9)), constant_values=CLASSES),
    )
    options = dict(epochs=2, extra_negatives=name == "negonly")
    narrow, narrow_stats = simulate(store, population, name, **options)
    padded, padded_stats = simulate(store, wide, name, **options)
    # Only the order of additions may differ.
    chex.assert_trees_all_close(padded, narrow, rtol=1e-5, atol=3e-6)
    for a, b in zip(narrow_stats, padded_stats):
        assert a.examples == b.examples and a.clients[:-2] == b.clients[:-2]


@pytest.mark.parametrize("name", ["fedss", "negonly", "fullsoftmax"])
@pytest.mark.parametrize(("devices", "lanes", "part_size"), [(1, 1, 0), (1, 2, 2), (2, 2, 1), (8, 1, 2), (1, 9, 4)])
def test_packing_changes_no_number(store, population, name, devices, lanes, part_size):
    options = dict(K=9, epochs=2, extra_negatives=name == "negonly")
    apart, apart_stats = simulate(store, population, name, **options)
    packed, packed_stats = simulate(
        store, population, name, devices=devices, lanes=lanes, part_size=part_size, **options
    )
    chex.assert_trees_all_close(packed, apart, rtol=1e-4, atol=1e-5)
    for a, b in zip(apart_stats, packed_stats):
        np.testing.assert_allclose(b.loss, a.loss, rtol=1e-5)
        assert a.examples == b.examples and a.clients[:-2] == b.clients[:-2]


def test_slots_are_counted(store, population):
    """Clients of 15, 1, 9, 4, 12, 7, 2, 8 and 5 examples, batches of 4."""
    _, (stats,) = simulate(store, population, rounds=1, K=9)
    assert stats.slots == 9 * 4 * 4  # nine lanes, as long as the longest
    _, (stats,) = simulate(store, population, rounds=1, K=9, lanes=1)
    assert stats.slots == (4 + 1 + 3 + 1 + 3 + 2 + 1 + 2 + 2) * 4
    _, (stats,) = simulate(store, population, rounds=1, K=9, lanes=1, part_size=1)
    assert stats.slots == stats.examples == 63
    _, (stats,) = simulate(store, population, rounds=1, K=9, lanes=2, devices=2)
    assert stats.slots == 2 * 2 * 5 * 4  # 19 batches on four lanes


def test_several_rounds_in_a_dispatch_give_the_same_numbers(store, population):
    mesh = parallel.make_mesh(jax.devices()[:2])
    method = methods.create("fedss", OPTIONS)
    training = LocalTraining(linear_model(), method, UNCHANGED, 0.1, 4, 1, LOGITS, CLASSES)
    server = make_server(mesh, method)
    run = make_round(training, server, Packing(5, 3), mesh).several(4)
    state = server.start(start())
    inputs = parallel.replicate(mesh, (*store, population, ROOT))
    state, first = run(3, state, *inputs)
    state, rest = run(2, state, *inputs)
    theta, stats = simulate(store, population, rounds=5)
    assert state.round == 5
    chex.assert_trees_all_close(jax.device_get(server.theta(state)), theta, rtol=1e-4, atol=1e-5)
    losses = [*first.loss[:3], *rest.loss[:2]]
    np.testing.assert_allclose(losses, [one.loss for one in stats], rtol=1e-5)
    assert first.loss[3] == 0 == rest.loss[2]


def test_an_encoder_may_have_nothing_to_learn(store, population):
    """As in logistic regression: only W is trained."""
    features = Model(init=lambda key: {}, embed=lambda params, x: x[:, :DIM])
    theta, stats = simulate(
        store, population, "posonly", K=9, rounds=10, model=features, theta=start()._replace(encoder={})
    )
    assert theta.encoder == {} and stats[-1].loss < 0.8 * stats[0].loss


def test_every_example_is_seen_once_an_epoch(store, population):
    _, (stats,) = simulate(store, population, rounds=1, K=9, epochs=1)
    assert stats.examples == int(population.num_examples.sum()) == 63
    assert stats.clients.chosen == stats.clients.counted == 9


def test_drawing_all_negatives_is_full_softmax(store, dataset):
    """With m = n - |P_k| the request is every class and the correction is log 1 = 0."""
    labels = np.asarray(dataset.train.labels)
    positives = np.unique(labels[:20])
    everyone = np.flatnonzero(np.isin(labels, positives))
    clients = Clients(
        client_id=jnp.arange(1),
        num_examples=jnp.array([len(everyone)]),
        examples=jnp.asarray(everyone)[None],
        positives=jnp.asarray(positives)[None],
        num_positives=jnp.array([len(positives)]),
    )
    sampled, _ = simulate(store, clients, "fedss", K=1, num_negatives=CLASSES - len(positives))
    full, _ = simulate(store, clients, "fullsoftmax", K=1)
    chex.assert_trees_all_close(sampled, full, rtol=1e-5, atol=3e-6)


def test_same_seed_same_bits(store, population):
    chex.assert_trees_all_equal(simulate(store, population), simulate(store, population))


def test_one_trace_over_many_rounds(store, population, monkeypatch):
    chex.clear_trace_counter()
    traced = chex.assert_max_traces(n=1)(round_module.draw_cohort)
    monkeypatch.setattr(round_module, "draw_cohort", traced)
    simulate(store, population, rounds=10)


def test_the_state_given_in_is_donated(store, population):
    method = methods.create("fedss", OPTIONS)
    mesh = parallel.make_mesh(jax.devices()[:1])
    server = make_server(mesh, method)
    training = LocalTraining(linear_model(), method, UNCHANGED, 0.1, 4, 1, LOGITS, CLASSES)
    state = server.start(start())
    make_round(training, server, Packing(5, 5), mesh).several(1)(
        1, state, *parallel.replicate(mesh, (*store, population, ROOT))
    )
    assert state.rows.rows.is_deleted()


def test_rows_that_nobody_asked_for_stay_until_momentum_moves_them(store, population):
    before = np.asarray(start().class_matrix)
    theta, _ = simulate(store, population, "posonly", rounds=1, K=2)
    moved = np.abs(theta.class_matrix - before).max(axis=1) > 0
    assert 0 < moved.sum() < CLASSES


def test_requested_rows_are_counted(store, population):
    _, (stats,) = simulate(store, population, "fedss", rounds=1, K=9)
    assert stats.clients.received == int(population.num_positives.sum()) + 9 * OPTIONS["num_negatives"]
    _, (stats,) = simulate(store, population, "fullsoftmax", rounds=1, K=9)
    assert stats.clients.received == 9 * CLASSES
    _, (stats,) = simulate(store, population, "negonly", rounds=1, K=9, extra_negatives=True)
    assert stats.clients.received == 9 * OPTIONS["num_negatives"] + int((2 * population.num_positives - 1).sum())


def test_every_example_epoch_and_round_is_augmented_anew(store, population):
    """A model that remembers nothing and an `augment` that reports the key it got."""
    keys = []

    def spy(key, image):
        jax.debug.callback(lambda data, x: keys.append((*data.tolist(), *x.tolist())), jax.random.key_data(key), image)
        return image

    mesh = parallel.make_mesh(jax.devices()[:1])
    method = methods.create("posonly", OPTIONS)
    server = make_server(mesh, method, options={})
    training = LocalTraining(linear_model(), method, Transform(spy, lambda image: image), 0.1, 4, 2, LOGITS, CLASSES)
    run_round = make_round(training, server, Packing(9, 9), mesh).several(1)
    state = server.start(start())
    for _ in range(2):
        state, _ = run_round(1, state, *parallel.replicate(mesh, (*store, population, ROOT)))
    jax.effects_barrier()
    real = {image.tobytes() for image in np.asarray(store[0].images)}
    used = {key for key in keys if np.array(key[2:], np.float32).tobytes() in real}
    # 63 examples, 2 epochs, 2 rounds; a padded slot repeats the key of the client's first example.
    assert len({key[:2] for key in used}) == len(used) == 63 * 2 * 2


def test_augmentation_does_not_depend_on_devices_or_padding():
    """Pictures rather than features: each example's augmentation follows its client, epoch and place."""
    rng = np.random.default_rng(0)
    store = Resident(jnp.asarray(rng.integers(0, 255, (24, 8, 8, 1), np.uint8))), jnp.arange(24) % 6
    examples = jnp.arange(24).reshape(4, 6)
    population = Clients(jnp.arange(4), jnp.full(4, 6), examples, jnp.tile(jnp.arange(6), (4, 1)), jnp.full(4, 6))
    model = models.create(
        "small", image_shape=(8, 8, 1), dim=4, dtype="float32", options={"layers": ((4, 3, 1), (4, 3, 2)), "groups": 2}
    )
    method = methods.create("posonly", OPTIONS)
    training = LocalTraining(model, method, jittered(Jitter()), 0.1, 4, 2, LOGITS, 6)
    results = []
    for devices, pad in ((1, 0), (4, 0), (1, 5)):
        mesh = parallel.make_mesh(jax.devices()[:devices])
        wide = population._replace(examples=jnp.pad(examples, ((0, 0), (0, pad))))
        theta = Theta(model.init(jax.random.key(0)), class_matrix.init(jax.random.key(1), 6, 4, 1.0))
        server = make_server(mesh, method, 6, options={})
        state = server.start(theta)
        run_round = make_round(training, server, Packing(3, 3), mesh).several(1)
        state, _ = run_round(1, state, *parallel.replicate(mesh, (*store, wide, ROOT)))
        results.append(jax.device_get(server.theta(state)))
    chex.assert_trees_all_close(results[1], results[0], rtol=1e-4, atol=1e-5)
    chex.assert_trees_all_close(results[2], results[0], rtol=1e-4, atol=1e-5)
