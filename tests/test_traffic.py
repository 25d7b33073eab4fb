from __future__ import annotations

from xml.etree import ElementTree

import jax
import numpy as np
import pytest
from conftest import CLASSES, DIM, LOGITS, linear_model, make_server

from fedss_jax import class_matrix, methods, parallel
from fedss_jax.analysis import traffic
from fedss_jax.client import LocalTraining
from fedss_jax.data.augment import UNCHANGED
from fedss_jax.round import Packing, make_round
from fedss_jax.types import Theta


def test_by_hand():
    cost = traffic.count(encoder_parameters=1000, num_classes=50, requested=10, dim=20)
    assert cost == (1000, 1000, 200)
    assert cost.share == 0.5 and cost.client == 1200 and cost.saved == pytest.approx(0.4)


def test_the_papers_settings_are_printed_with_its_figures():
    lines = traffic.table().splitlines()
    assert len(lines) == 1 + 6
    sop = lines[1]
    encoder = 2_971_952 + 960 * 64 + 64
    assert f"{encoder:,}" in sop and f"{11318 * 64:,}" in sop
    share = 11318 * 64 / (encoder + 11318 * 64)
    assert f"{share:.1%}" in sop and "16 %" in sop
    assert f"{2_971_952 + 960 * 1280 + 1280:,}" in lines[5] and "79 %" in lines[5]


OPTIONS = {
    "num_negatives": 3,
    "extra_negatives": True,
    "correct_logits": True,
    "margin": 0.5,
    "spreadout_step": 0.1,
    "neighbours": 0,
    "touched_only": False,
}


@pytest.mark.parametrize("name", [name for name in methods.METHODS if name != "centralized"])
def test_what_a_method_asks_for_is_what_the_engine_gathers(name, population, store):
    """Counted in rounds of the real engine, over clients of all sizes; and the rows that came back are no others."""
    mesh, method = parallel.make_mesh(jax.devices()[:1]), methods.create(name, OPTIONS)
    server = make_server(mesh, method)
    training = LocalTraining(linear_model(), method, UNCHANGED, 0.1, 4, 1, LOGITS, CLASSES)
    everyone = len(population.client_id)
    kind = make_round(training, server, Packing(everyone, 2), mesh)
    start = Theta(linear_model().init(jax.random.key(0)), class_matrix.init(jax.random.key(1), CLASSES, DIM, 1.0))
    _, stats = jax.jit(kind.one)(server.start(start), *store, population, jax.random.key(2))
    asked = np.asarray(method.num_requested(population.num_positives, CLASSES))
    assert int(stats.clients.received) == int(stats.clients.returned) == asked.sum()
    assert int(stats.clients.counted) == everyone
    by_hand = {"fedss": 3, "negonly": 3 - 1, "posonly": 0, "fedaws": 0}
    own = np.asarray(population.num_positives)
    if name in by_hand:
        expected = own + by_hand[name] + (own if name == "negonly" else 0)
        assert asked.tolist() == expected.tolist()
    else:
        assert asked.tolist() == [CLASSES] * everyone


def test_the_share_of_w_by_hand():
    encoder = {64: 2_971_952 + 960 * 64 + 64, 1280: 2_971_952 + 960 * 1280 + 1280}
    shares = traffic.layer_share("mobilenet_v3_large", [64, 1280], [100, 11318])
    for d, of_n in shares.items():
        for n, share in of_n.items():
            assert share == pytest.approx(n * d / (n * d + encoder[d]))
    assert shares[1280][11318] > shares[64][11318] > shares[64][100]


def test_the_command_prints_and_draws(tmp_path, capsys):
    traffic.main([f"--figure={tmp_path}/share.svg"])
    assert "Stanford Online Products" in capsys.readouterr().out
    drawn = (tmp_path / "share.svg").read_text()
    assert ElementTree.fromstring(drawn).tag.endswith("svg") and "d = 1,280" in drawn
