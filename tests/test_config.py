from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from configs import common, glyphs
from fedss_jax import config as config_module
from fedss_jax import feed, methods, packing, parallel
from fedss_jax.client import LocalTraining
from fedss_jax.config import fit_to_population
from fedss_jax.crew import ALONE, Together
from fedss_jax.parts import make_centralized_server, make_method, most_lanes
from fedss_jax.rows import Layout
from fedss_jax.types import Clients, UserError


def test_rates_come_from_the_tuned_ones_unless_set():
    config = glyphs.get_config()
    for method in methods.METHODS:
        config.method = method
        resolved = config_module.resolve(config)
        assert resolved.client.learning_rate == glyphs.TUNED[method]["learning_rate"]
        assert resolved.model.class_norm == glyphs.TUNED[method]["class_norm"]
    config.client.learning_rate = 0.7
    assert config_module.resolve(config).client.learning_rate == 0.7
    assert config.model.class_norm is None  # the config itself stays as it was


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("method", "fedsgd", r"method is 'fedsgd'.*fedss, negonly, posonly, fedaws, fullsoftmax, centralized"),
        ("rounds", 0, "rounds is 0; it must be at least 1"),
        ("clients_per_round", -1, "clients_per_round is -1"),
        ("num_negatives", -2, "num_negatives is -2; it must be at least -1"),
        ("seed", 2**32, r"seed is 4294967296; it must be below 2\*\*32"),
        ("data.name", "", "data.name is not set"),
        ("eval.every", 0, "eval.every is 0"),
        ("client.learning_rate", 0.0, "client.learning_rate is 0.0; it must be above 0"),
        ("client.learning_rate", float("nan"), "client.learning_rate is nan"),
        ("server.row_weighting", "mean", "server.row_weighting is 'mean'.*cohort, holders"),
        ("faults.dropout", 1.5, "faults.dropout is 1.5; it is a share, from 0 to 1"),
        ("faults.nan", float("nan"), "faults.nan is nan; it must be a finite number"),
        ("deadline", -1.0, "deadline is -1.0; it must be at least 0"),
        ("server.clip_norm", -1.0, "server.clip_norm is -1.0; it must be at least 0"),
    ],
)
def test_bad_values_are_refused(key, value, message):
    config = glyphs.get_config()
    config.update_from_flattened_dict({key: value})
    with pytest.raises(UserError, match=message):
        config_module.resolve(config)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("rounds", 10**9, "rounds is 1000000000; it must be at most 10000000"),
        ("num_negatives", 10**30, "num_negatives is 10{30}; it must be below 2"),
        ("model.options.groups", -(2**40), "model.options.groups is -1099511627776; it must be below"),
        ("fedaws.margin", float("inf"), "fedaws.margin is inf; it must be a finite number"),
        ("fedaws.weight", float("nan"), "fedaws.weight is nan; it must be a finite number"),
        ("server.learning_rate", 1e-300, "server.learning_rate is 1e-300; it must be above 0, at least 1.2e-38"),
        ("wandb", "a\nb", r"wandb is 'a\\nb'; it must be one line of UTF-8 text"),
        ("init_from", "\udcff", "init_from is .*; it must be one line of UTF-8 text"),
        ("client", {}, "the config has no client.batch_size; set it, or begin with configs/common.py"),
        ("tuned", {"fedss": 3}, "client.learning_rate is not set, and none was tuned for fedss"),
        ("eval", {"every": "often"}, "eval.every is 'often'; it must be a whole number"),
        ("eval", {"every": True}, "eval.every is True; it must be a whole number"),
    ],
)
def test_values_of_no_use_are_refused(key, value, message):
    config = glyphs.get_config()
    section, _, name = key.rpartition(".")
    with config.ignore_type():
        config_module.look_up(config, section)[name] = (
            value if section or not isinstance(value, dict) else ConfigDict(value)
        )
    with pytest.raises(UserError, match=message) as caught:
        config_module.resolve(config)
    assert len(str(caught.value).splitlines()) == 1


def test_what_no_device_has_room_for_is_refused():
    config = glyphs.get_config()
    config.model.dim = 10**9
    config_module.check_room(config, {"model.dim": 8e9}, 8e9)
    with pytest.raises(UserError, match="model.dim is 1000000000, which takes at least 8.0 GB on a device, but 7.0 GB"):
        config_module.check_room(config, {"model.dim": 8e9}, 7e9)


def test_negonly_needs_negatives():
    with pytest.raises(UserError, match="num_negatives is 0, but negonly"):
        methods.negonly(num_negatives=0, extra_negatives=False, correct_logits=True)
    assert methods.negonly(num_negatives=0, extra_negatives=True, correct_logits=True).num_negatives(4) == 3


def test_a_rate_that_nobody_set_or_tuned_is_refused():
    config = glyphs.get_config()
    config.tuned = {}
    with pytest.raises(UserError, match="client.learning_rate is not set, and none was tuned for fedss"):
        config_module.resolve(config)


def population(num_positives) -> Clients:
    count = len(num_positives)
    return Clients(
        jnp.arange(count), jnp.ones(count), jnp.zeros((count, 1)), jnp.zeros((count, 4)), jnp.array(num_positives)
    )


@pytest.mark.parametrize(
    ("name", "negatives", "extra", "limit"),
    [("fedss", 7, False, 7), ("negonly", 7, False, 7), ("negonly", 5, True, 5), ("posonly", 99, False, 99)],
)
def test_negatives_must_exist(name, negatives, extra, limit):
    """Of 10 classes client 1 holds 3, so 7 remain; with |P_k| - 1 = 2 extra ones only 5 may be asked for."""
    config = glyphs.get_config()
    config.clients_per_round = 2

    def check(number):
        options = dict(num_negatives=number, extra_negatives=extra, correct_logits=True)
        config_module.check_population(config, methods.create(name, options), population([1, 3]), 10)

    check(limit)
    if name != "posonly":
        with pytest.raises(UserError, match="would draw 30000000"):
            check(3_000_000_000)  # more than 32 bits hold
        with pytest.raises(UserError, match=r"client 1 would draw 8 negatives.*10 classes 3 are its own and 7 remain"):
            check(limit + 1)


def test_more_clients_a_round_than_there_are_is_refused():
    config = glyphs.get_config()
    config.clients_per_round = 3
    with pytest.raises(UserError, match="clients_per_round is 3, but the data has 2 clients; lower it"):
        config_module.check_population(config, methods.posonly(), population([1, 3]), 10)


def test_options_as_text():
    parse = config_module.parse_options
    assert parse("b1=0.9, nesterov=True,name=x") == {"b1": 0.9, "nesterov": True, "name": "x"}
    assert parse("") == {}
    with pytest.raises(UserError, match="'b1'"):
        parse("b1")


def test_variants_are_typed_and_leftovers_refused():
    def parse(text):
        return common.parse_variant(text, task=("a", "b"), fast=False, size=3, rate=0.5)

    assert parse("") == {"task": "a", "fast": False, "size": 3, "rate": 0.5}
    assert parse("b,fast,size=8,rate=1") == {"task": "b", "fast": True, "size": 8, "rate": 1.0}
    for text, message in (
        ("c", "'c' does not exist; choose from a, b, fast, size=..., rate=..."),
        ("size=big", "'big' is no int"),
        ("fast=1", "does not exist"),
        ("size", "does not exist"),
    ):
        with pytest.raises(UserError, match=message):
            parse(text)


def test_every_method_option_reaches_its_method():
    """Each setting of a config changes what the method that takes it does."""
    config = glyphs.get_config()
    config.num_negatives, config.extra_negatives, config.correct_logits = 7, True, False
    config.fedaws.margin, config.fedaws.weight, config.server.learning_rate = 0.3, 0.2, 0.5
    config.fedaws.neighbours, config.fedaws.touched_only = 6, True
    config.method = "negonly"
    negonly = make_method(config)
    assert negonly.num_negatives(4) == 7 + 3
    client = Clients(jnp.asarray(0), jnp.asarray(1), jnp.zeros(1, int), jnp.array([2]), jnp.asarray(1))
    request = negonly.request(jax.random.key(0), client, 30)
    assert (request.log_inclusion == 0).all()
    config.correct_logits = True
    request = make_method(config).request(jax.random.key(0), client, 30)
    assert request.log_inclusion.min() == pytest.approx(math.log(7 / 29))
    config.method = "fedaws"
    assert make_method(config).after_step.keywords == {
        "margin": 0.3,
        "step_size": pytest.approx(0.2 * 0.5),
        "neighbours": 6,
        "touched_only": True,
    }


def test_unknown_methods_are_refused_with_the_known_ones():
    with pytest.raises(UserError, match=r"'fedavg'.*fedss"):
        methods.create("fedavg", {})


def test_counts_that_are_left_to_the_data():
    config = common.get_config()
    config.clients_per_round, config.num_negatives = 0, -1
    clients = Clients(np.arange(4), None, None, None, np.array([3, 7, 2, 5]))
    fitted = fit_to_population(config, clients, 12)
    assert (fitted.clients_per_round, fitted.num_negatives) == (4, 5)
    assert (config.clients_per_round, config.num_negatives) == (0, -1)  # what the run's folder keeps
    many = Clients(np.arange(400), None, None, None, np.array([3, 7, 2, 5]))
    fitted = fit_to_population(config, many, 1000)
    assert (fitted.clients_per_round, fitted.num_negatives) == (10, 20)


def test_the_learning_rate_warms_up_and_falls_along_a_cosine():
    config = common.get_config()
    config.client.learning_rate, config.rounds, config.centralized.warmup = 0.5, 10, 4

    def rates(config):
        layout = Layout(parallel.make_mesh(), 3, sharded=False)
        optimizer = make_centralized_server(config, methods.centralized(), 2, layout).optimizer
        one = jnp.ones(())
        state, steps = optimizer.init(one), []
        for _ in range(20):
            step, state = optimizer.update(one, state)
            steps.append(-float(step))
        return steps

    assert rates(config) == pytest.approx([0, 0.125, 0.25, 0.375] + 16 * [0.5])
    config.centralized.cosine = True
    fall = [0.25 * (1 + np.cos(np.pi * i / 16)) for i in range(16)]
    assert rates(config) == pytest.approx([0, 0.125, 0.25, 0.375, *fall], rel=1e-4)
    config.centralized.warmup = 20
    with pytest.raises(UserError, match="centralized.warmup is 20, but the run makes 20 updates; lower it"):
        rates(config)


def test_lanes_that_each_have_a_whole_w_are_no_more_than_there_is_room_for(monkeypatch):
    config, mesh = common.get_config(), parallel.make_mesh(jax.devices()[:4])
    monkeypatch.setattr(feed, "memory_of", lambda mesh: 16 * 2**30)

    def lanes(method, n, crew=ALONE):
        training = LocalTraining(None, method, None, 0.1, 32, 1, None, n, crew=crew)
        return most_lanes(config, training, mesh)

    full = methods.fullsoftmax()
    million = 2**20  # rows of 64 numbers: 256 MB
    assert lanes(full, million) == 8 * 2**30 // (3 * 256 * 2**20)
    assert lanes(full, million, Together(Layout(mesh, million, sharded=True))) == 4 * 8 * 2**30 // (3 * 256 * 2**20)
    assert lanes(full, 100 * million) == 1
    assert lanes(full, 1000) == packing.MOST_LANES == lanes(methods.posonly(), 100 * million)


def test_shares_of_spoilt_updates_and_clients_beyond_the_population_are_refused():
    config = glyphs.get_config()
    config.faults.nan, config.faults.scaled = 0.6, 0.5
    with pytest.raises(UserError, match="faults.nan and faults.scaled are 1.1 together"):
        config_module.resolve(config)
    config = glyphs.get_config()
    config.clients_per_round, config.over_selection, config.num_negatives = 3, 0.5, 1
    with pytest.raises(UserError, match="over_selection is 0.5, which chooses 5 clients a round, but the data has 4"):
        config_module.check_population(config, make_method(config), population([1, 1, 1, 1]), 9)
    config.over_selection = 0.3
    config_module.check_population(config, make_method(config), population([1, 1, 1, 1]), 9)
