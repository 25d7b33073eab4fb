from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from fedss_jax import packing


@pytest.mark.parametrize(
    ("sizes", "batch_size", "chosen"),
    [
        ([96, 64, 32], 32, 32),  # nothing is lost
        ([100], 32, 16),  # 128 slots, or 112
        ([30, 31], 32, 32),
        ([1, 2, 3], 32, 16),  # as good as it gets
        ([5, 7, 13], 4, 4),  # a small batch stays whole
        ([50, 50], 10, 10),
    ],
)
def test_parts_are_the_largest_that_fill_up(sizes, batch_size, chosen):
    assert packing.choose_part_size(np.array(sizes), batch_size) == chosen


def test_equal_clients_get_as_many_lanes_as_divide_them():
    steps = np.full(100, 3)
    assert packing.choose_lanes(steps, 32, devices=1, platform="cpu") == 8
    assert packing.choose_lanes(steps, 32, devices=8, platform="cpu") == 4
    assert packing.choose_lanes(steps, 32, devices=1, platform="tpu") == 32
    assert packing.choose_lanes(steps, 9, devices=1, platform="cpu") == 3  # not 8 and then 1


def test_one_long_client_takes_few_lanes():
    assert packing.choose_lanes(np.array([20] + [1] * 20), 21, devices=1, platform="cpu") == 2


def test_ragged_cohorts_are_packed_tightly():
    rng = np.random.default_rng(0)
    sizes = np.clip(rng.lognormal(np.log(130) - 0.5, 1.0, 1000), 30, 2000).astype(int)
    part = packing.choose_part_size(sizes, 32)
    steps = -(-sizes // part)
    lanes = packing.choose_lanes(steps, 64, devices=1, platform="cpu")
    used = slots = 0
    for _ in range(20):
        cohort = rng.choice(1000, 64, replace=False)
        used += sizes[cohort].sum()
        slots += packing.longest_lane(steps[cohort], lanes) * lanes * part
    assert used / slots > 0.9
    assert lanes >= 3


def test_places_cover_the_largest_of_all_rounds():
    taken = np.random.default_rng(0).integers(0, 100, (1300, 2))
    assert packing.most_places(lambda rounds: jnp.asarray(taken)[rounds], 1300) == taken.max()
    assert packing.most_places(lambda rounds: jnp.asarray(taken)[rounds], 3) == taken[:3].max()
