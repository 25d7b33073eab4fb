from __future__ import annotations

import pytest

from fedss_jax.analysis import traffic


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
