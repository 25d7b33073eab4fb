"""Clients that drop out, come late or send nonsense: what is drawn, and that a round has the right numbers then."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from conftest import CLASSES, LOGITS, linear_model, make_server
from test_feed import Counting
from test_feed import simulate as simulate_feed
from test_round import OPTIONS, ROOT, simulate, start

from configs import arrays
from fedss_jax import methods, parallel
from fedss_jax import round as round_module
from fedss_jax.client import LocalTraining
from fedss_jax.data.augment import UNCHANGED
from fedss_jax.defence import FIRST_BOUND, RATE, Clipping
from fedss_jax.faults import Faults
from fedss_jax.round import Attendance, Packing, RoundStats, make_round
from fedss_jax.train import round_scalars, stop_if_diverged, train
from fedss_jax.types import UserError

MANY = Faults(dropout=0.3, spread=0.7, deadline=3.0, over_selection=0.5, nan=0.2, scaled=0.2, scale=50.0)
CLIPPING = Clipping(norm=0.4)


def keys(count: int) -> jax.Array:
    return jax.vmap(lambda i: jax.random.fold_in(ROOT, i))(jnp.arange(count))


def test_as_many_are_chosen_as_it_takes():
    assert Faults().chosen(32) == 32
    assert Faults(over_selection=0.3).chosen(32) == 42  # 9.6 more
    assert Faults(over_selection=0.1).chosen(30) == 33  # though 30 * 0.1 is a little more than 3 in binary


def test_shares_are_those_asked_for():
    faults = Faults(dropout=0.3, nan=0.05, scaled=0.1, scale=-7.0)
    turnout = faults.turnout(keys(20_000), jnp.ones(20_000), jnp.asarray(1.0), 20_000)
    factor = np.asarray(faults.spoil(keys(20_000)))
    assert np.mean(turnout.dropped) == pytest.approx(0.3, abs=0.01) and not turnout.late.any()
    assert np.isnan(factor).mean() == pytest.approx(0.05, abs=0.005)
    assert np.mean(factor == -7.0) == pytest.approx(0.1, abs=0.006)
    assert np.mean(factor == 1.0) == pytest.approx(0.85, abs=0.01)
    # Who sends nonsense does not follow from who drops out.
    assert np.mean(np.asarray(turnout.dropped)[np.isnan(factor)]) == pytest.approx(0.3, abs=0.06)


def test_the_first_k_before_the_deadline_count():
    sizes = jnp.array([4.0, 1.0, 3.0, 2.0, 10.0])
    on_time = Faults(over_selection=1.0).turnout(keys(5), sizes, jnp.asarray(2.0), 3)
    assert on_time.late.tolist() == [True, False, False, False, True]
    on_time = Faults(over_selection=1.0, deadline=1.0).turnout(keys(5), sizes, jnp.asarray(2.0), 3)
    assert on_time.late.tolist() == [True, False, True, False, True]  # 3 examples take 1.5 times the mean
    everyone = Faults(deadline=1.0, dropout=1.0).turnout(keys(5), sizes, jnp.asarray(2.0), 3)
    assert everyone.dropped.all() and not everyone.late.any()


def test_speeds_are_log_normal():
    late = Faults(spread=0.5, deadline=2.0).turnout(keys(20_000), jnp.ones(20_000), jnp.asarray(1.0), 20_000).late
    assert np.mean(late) == pytest.approx(0.0828, abs=0.006)  # a normal number above log(2) / 0.5


def test_the_bound_follows_a_quantile():
    assert Clipping().bound(None) is None and Clipping(norm=3.0).bound(None) == 3.0
    clipping = Clipping(quantile=0.8)
    assert clipping.start() == pytest.approx(FIRST_BOUND)
    assert Clipping(norm=3.0, quantile=0.8).start() == 3.0
    assert clipping.next(jnp.asarray(2.0), jnp.asarray(0.3)) == pytest.approx(2.0 * np.exp(RATE * 0.5))
    norms, bound = np.random.default_rng(0).uniform(5, 10, 1000), clipping.start()
    for _ in range(300):
        bound = clipping.next(bound, jnp.asarray(np.mean(norms <= float(bound))))
    assert float(bound) == pytest.approx(np.quantile(norms, 0.8), rel=0.02)


@pytest.mark.parametrize(
    ("name", "weighting", "K", "faults"),
    [
        ("fedss", "cohort", 4, MANY),
        ("fedss", "holders", 2, Faults(dropout=0.6, nan=0.3)),  # momentum waits in rounds that nobody survives
        ("fedaws", "cohort", 2, Faults(dropout=0.6, nan=0.3)),
        ("fullsoftmax", "cohort", 4, MANY),
    ],
)
def test_agrees_with_a_literal_algorithm_1(dataset, store, population, name, weighting, K, faults):
    clips = faults.scaled > 0
    clipping = CLIPPING if clips else Clipping()
    options = dict(rounds=6, K=K, faults=faults)
    theta, stats = simulate(store, population, name, weighting=weighting, clipping=clipping, **options)
    A, W, losses = reference.run(
        name,
        start().encoder["A"],
        start().class_matrix,
        dataset,
        ROOT,
        row_weighting=weighting,
        clip_norm=clipping.norm or np.inf,
        **options,
    )
    np.testing.assert_allclose(theta.encoder["A"], A, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(theta.class_matrix, W, rtol=1e-3, atol=1e-4)
    found = [float(s.loss / s.counted) if s.counted else None for s in stats]
    assert found == [loss if loss is None else pytest.approx(loss, rel=1e-3) for loss in losses]
    assert [int(s.steps) for s in stats] == [loss is not None for loss in losses]
    for s in stats:
        c = s.clients
        assert c.chosen == faults.chosen(K) and 0 <= c.counted == c.reported - c.non_finite <= K
        assert c.broken == 0 and c.clipped <= c.counted and c.returned <= c.received
    total = {field: sum(int(getattr(s.clients, field)) for s in stats) for field in ("dropped", "late", "non_finite")}
    assert total["dropped"] and total["non_finite"] and bool(total["late"]) == (faults.deadline > 0)
    assert (None in losses) == (K == 2) and any(s.clients.clipped for s in stats) == clips


@pytest.mark.parametrize("name", ["fedss", "fullsoftmax"])
def test_devices_and_packing_change_no_number(store, population, name):
    options = dict(K=5, rounds=3, faults=MANY, clipping=CLIPPING)
    alone, stats = simulate(store, population, name, **options)
    for devices, lanes, part_size in ((1, 2, 2), (2, 0, 0), (8, 1, 1)):
        layout = dict(devices=devices, lanes=lanes, part_size=part_size)
        packed, packed_stats = simulate(store, population, name, **layout, **options)
        chex.assert_trees_all_close(packed, alone, rtol=1e-4, atol=1e-5)
        for a, b in zip(stats, packed_stats):
            assert a.clients[:-2] == b.clients[:-2] and a.counted == b.counted
            np.testing.assert_allclose(b.clients.norm, a.clients.norm, rtol=1e-4)


@pytest.mark.parametrize("scale", [np.inf, 1e30])
def test_an_update_without_a_length_is_as_one_that_never_came(store, population, scale):
    """Three ways for a client not to count, each with the same draw: NaN, Inf, and a length beyond float32."""
    nan, _ = simulate(store, population, faults=Faults(nan=0.4))
    other, stats = simulate(store, population, faults=Faults(scaled=0.4, scale=scale))
    chex.assert_trees_all_equal(nan, other)
    assert sum(int(s.clients.non_finite) for s in stats) > 0
    assert all(s.clients.broken == 0 for s in stats)  # it was not the training


def federation(name, **options):
    mesh = parallel.make_mesh(jax.devices()[:2])
    method = methods.create(name, OPTIONS)
    server = make_server(mesh, method, sharded=name != "fullsoftmax", **options)
    training = LocalTraining(linear_model(), method, UNCHANGED, 0.1, 4, 1, LOGITS, CLASSES)
    return server, lambda faults: make_round(training, server, Packing(5, 3), mesh, faults).several(1), mesh


@pytest.mark.parametrize(
    ("name", "options"),
    [("fedss", {"clipping": Clipping(quantile=0.5)}), ("fedss", {"optimizer": "adam", "options": {}}), ("fedaws", {})],
)
def test_a_round_that_nobody_survives_changes_nothing_but_the_round(store, population, name, options):
    server, rounds, mesh = federation(name, **options)
    inputs = parallel.replicate(mesh, (*store, population, ROOT))
    state, _ = rounds(Faults())(1, server.start(start()), *inputs)
    before = jax.device_get(state)
    assert before.round == before.steps == 1
    for number, faults in enumerate((Faults(dropout=1.0), Faults(nan=1.0)), start=2):
        state, stats = rounds(faults)(1, state, *inputs)
        chex.assert_trees_all_equal(jax.device_get(state), before._replace(round=np.int32(number)))
        assert stats.steps == stats.counted == stats.clients.counted == 0
    assert stats.clients.non_finite == 5


def test_one_trace_over_many_rounds(store, population, monkeypatch):
    chex.clear_trace_counter()
    monkeypatch.setattr(round_module, "draw_cohort", chex.assert_max_traces(n=1)(round_module.draw_cohort))
    _, stats = simulate(store, population, rounds=10, faults=MANY, clipping=Clipping(quantile=0.5))
    bounds = [float(s.clients.bound) for s in stats]
    assert bounds[0] == pytest.approx(FIRST_BOUND) and len(set(bounds)) > 5


def test_streamed_examples_are_those_of_clients_that_report(dataset, population):
    images = Counting(dataset.train.images)
    resident, losses = simulate_feed(dataset, population, "device", "fedss", devices=2, faults=MANY)
    streamed, found = simulate_feed(dataset, population, "disk", "fedss", devices=2, faults=MANY, images=images)
    chex.assert_trees_all_close(streamed, resident, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found, losses, rtol=1e-6)
    read = len(images.rows)
    images.rows.clear()
    simulate_feed(dataset, population, "disk", "fedss", devices=2, images=images)
    assert read < len(images.rows)


def attendance(**numbers) -> Attendance:
    return Attendance(**{field: np.int32(numbers.get(field, 0)) for field in Attendance._fields})


def stats(loss, counted, steps=1, **clients) -> RoundStats:
    return RoundStats(np.float32(loss), np.int32(counted), np.int32(40), np.int32(50), steps, attendance(**clients))


def test_bytes_and_counts_by_hand():
    """Ten clients are sent 100 parameters and 8 rows of 2 each; one drops out, one is late, one sends NaN."""
    lost = stats(9.0, 6, chosen=10, dropped=1, late=1, non_finite=1, received=80, returned=60, norm=3)
    found = round_scalars(lost, encoder_parameters=100, dim=2)
    assert found == {
        "train/loss": 1.5,
        "comm/classes": 8.0,
        "comm/bytes_down": 4 * (100 + 16),
        "comm/bytes_up": pytest.approx(4 * (80 + 12)),
        "clients/update_norm": 3.0,
        "clients/chosen": 10,
        "clients/dropped": 1,
        "clients/late": 1,
        "clients/non_finite": 1,
        "clients/clipped": 0,
        "clients/counted": 7,
        "server/steps": 1,
    }
    fine = stats(9.0, 6, chosen=2, received=16, returned=16)
    assert "clients/chosen" not in round_scalars(fine, 100, 2) and "clients/chosen" in round_scalars(fine, 100, 2, True)
    nobody = round_scalars(stats(0.0, 0, steps=0, chosen=2, dropped=2, received=16), 100, 2)
    assert "train/loss" not in nobody and nobody["server/steps"] == nobody["comm/bytes_up"] == 0


def test_only_a_round_that_broke_by_itself_ends_the_run():
    fine = [
        stats(9.0, 6, chosen=3, non_finite=2, broken=2),  # one is left
        stats(0.0, 0, steps=0, chosen=3, dropped=3),
        stats(0.0, 0, steps=0, chosen=3, non_finite=3),  # spoilt, all of them
    ]
    for each in fine:
        stop_if_diverged(7, each, 0.5, spoilt=False)
    cannot = stats(9.0, 6, steps=0, chosen=3)
    stop_if_diverged(7, cannot, 0.5, spoilt=True)
    for each in (cannot, cannot._replace(clients=None)):
        with pytest.raises(UserError, match="the server cannot take the step of round 7, after which the model would"):
            stop_if_diverged(7, each, 0.5, spoilt=False)
    assert round_scalars(cannot._replace(clients=None), 100, 2) == {"train/loss": 1.5, "server/steps": 0}
    with pytest.raises(
        UserError, match="the training loss of round 7 is nan; lower client.learning_rate, which is 0.5"
    ):
        stop_if_diverged(7, stats(0.0, 0, steps=0, chosen=3, dropped=1, non_finite=2, broken=2), 0.5, spoilt=False)


def own_features(tmp_path):
    rng = np.random.default_rng(0)
    labels, clients = np.arange(40) // 4, np.arange(40) // 8
    np.savez(tmp_path / "train.npz", features=rng.normal(size=(40, 6)), labels=labels, clients=clients)
    config = arrays.get_config()
    config.data.train = str(tmp_path / "train.npz")
    config.rounds, config.clients_per_round, config.num_negatives, config.eval.every = 3, 2, 1, 3
    return config


def test_a_run_says_what_became_of_its_clients(tmp_path, one_device, capsys):
    config = own_features(tmp_path)
    config.faults.dropout, config.over_selection, config.server.clip_quantile = 1.0, 0.5, 0.5
    config.data.residency = "host"
    summary = train(config, str(tmp_path / "run"))
    assert "train/loss" not in summary["final"] and summary["final"]["clients/dropped"] == 3
    said = capsys.readouterr().out
    assert "9 were chosen, 9 dropped out" in said and "in 3 the server took no step" in said
    assert "dropped out" in (tmp_path / "run" / "report.html").read_text()


def test_a_server_that_cannot_move_ends_the_run(tmp_path, one_device):
    config = own_features(tmp_path)
    config.server.optimizer, config.server.options = "adam", "eps=0"  # 0 / 0 in rows that nobody asked for
    with pytest.raises(UserError, match="the server cannot take the step of round 1"):
        train(config, str(tmp_path / "run"))


def test_centralized_runs_have_no_clients_to_lose(tmp_path, one_device, capsys):
    config = own_features(tmp_path)
    config.method, config.faults.dropout, config.client.learning_rate = "centralized", 0.5, 0.1
    train(config, str(tmp_path / "run"))
    assert "centralized has no clients: faults" in capsys.readouterr().out
