from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from fedss_jax import packing

HEAVY = packing.Effort(parameters=3_000_000, operations=4.6e8, traffic=1.1e9)  # MobileNetV3 at 224 x 224
LIGHT = packing.Effort(parameters=10_000, operations=2e4, traffic=4e4)  # a linear encoder


@pytest.mark.parametrize(
    ("sizes", "batch_size", "effort", "chosen"),
    [
        ([96, 64, 32], 32, HEAVY, 32),  # nothing is lost
        ([100], 32, HEAVY, 16),  # 112 slots, where whole batches have 128
        ([100], 32, LIGHT, 32),  # moving the parameters more often would cost more
        ([1, 2, 3], 32, HEAVY, 4),
        ([1, 2, 3], 2, HEAVY, 2),
        ([50, 50], 10, HEAVY, 10),
    ],
)
def test_parts_are_what_takes_least(sizes, batch_size, effort, chosen):
    assert packing.choose_part_size(np.array(sizes), batch_size, effort, "tpu") == chosen


def test_a_cpu_takes_as_many_images_at_a_time_as_its_cache_holds():
    assert packing.choose_part_size(np.array([96, 64]), 32, HEAVY, "cpu") == 4
    assert packing.choose_part_size(np.array([96, 64]), 32, LIGHT, "cpu") == 32
    assert packing.choose_part_size(np.array([96]), 32, HEAVY._replace(traffic=1e11), "cpu") == 4


def test_equal_clients_get_as_many_lanes_as_divide_them():
    steps = np.full(100, 3)
    medium = packing.Effort(parameters=86_000, operations=1e6, traffic=9e5)
    assert packing.choose_lanes(steps, 32, 1, 32, medium, "cpu") == 4  # six would be enough, but leave two over
    assert packing.choose_lanes(steps, 32, 1, 32, LIGHT, "cpu") == 32
    assert packing.choose_lanes(steps, 32, 8, 32, LIGHT, "cpu") == 4
    assert packing.choose_lanes(steps, 32, 1, 4, HEAVY, "cpu") == 1
    assert packing.choose_lanes(steps, 32, 1, 8, HEAVY, "gpu") == 16
    assert packing.choose_lanes(steps, 32, 1, 4, HEAVY, "tpu") == 4


def test_a_step_that_is_large_enough_alone_gets_one_lane():
    cnn = packing.Effort(parameters=1_600_000, operations=3.4e7, traffic=3e6)
    assert packing.choose_lanes(np.full(50, 5), 50, 1, 10, cnn, "cpu") == 1
    assert packing.choose_lanes(np.full(50, 5), 50, 1, 16, HEAVY, "tpu") == 1


def test_what_is_asked_for_stays():
    sizes = np.array([100, 100])
    plan = dict(batch_size=32, epochs=2, clients_per_round=2, devices=1, platform="tpu")
    assert packing.choose(sizes, HEAVY, **plan) == (16, 1)
    assert packing.choose(sizes, HEAVY, **plan, part_size=8, lanes=2) == (8, 2)


def test_no_more_lanes_than_there_is_room_for():
    plan = dict(batch_size=32, epochs=1, clients_per_round=32, devices=1, platform="cpu", part_size=32)
    sizes = np.full(40, 96)
    assert packing.choose(sizes, LIGHT, **plan) == (32, 32)
    assert packing.choose(sizes, LIGHT, **plan, most_lanes=4) == (32, 4)


def test_one_long_client_takes_few_lanes():
    steps = np.array([20] + [1] * 20)
    assert packing.choose_lanes(steps, 21, 1, 32, LIGHT, "cpu") == 2


def test_ragged_cohorts_are_packed_tightly():
    rng = np.random.default_rng(0)
    sizes = np.clip(rng.lognormal(np.log(130) - 0.5, 1.0, 1000), 30, 2000).astype(int)
    part = packing.choose_part_size(sizes, 32, HEAVY, "gpu")
    steps = -(-sizes // part)
    lanes = packing.choose_lanes(steps, 64, 1, part, HEAVY, "gpu")
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
