"""Made-up data in the number of the real."""

from __future__ import annotations

import numpy as np
import pytest

from configs import imagenet21k, landmarks, sop
from fedss_jax import data
from fedss_jax.data.standin import Procedural, group_sizes, patterns
from fedss_jax.parts import source_options
from fedss_jax.types import UserError


def load(config_file, variant="standin", **changes):
    config = config_file.get_config(variant)
    return data.find("standin", "test", source_options(config) | changes)()


def test_as_many_of_everything_as_in_stanford_online_products():
    dataset = load(sop)
    assert (len(dataset.train), len(dataset.test), len(dataset.clients)) == (59551, 60502, 596)
    assert dataset.num_classes == len(np.unique(dataset.train.labels)) == 11318
    assert len(np.unique(dataset.test.labels)) == 11316 and dataset.test.labels.min() >= 11318
    assert all(len(np.unique(dataset.train.labels[held])) == 20 for held in dataset.clients)
    assert {len(held) for held in dataset.clients} <= {99, 100, 101}
    assert dataset.train.images.shape == (59551, 256, 256, 3)


def test_as_many_of_everything_as_in_landmarks():
    dataset = load(landmarks)
    sizes = np.array([len(held) for held in dataset.clients])
    labels = [len(np.unique(dataset.train.labels[held])) for held in dataset.clients]
    assert (len(dataset.train), len(dataset.clients), dataset.num_classes) == (164172, 1262, 2028)
    assert sizes.sum() == 164172 and sizes.max() > 3 * sizes.mean()  # people are not alike
    assert np.mean(labels) == pytest.approx(90, abs=3)
    assert np.concatenate(dataset.clients).tolist() == list(range(164172))


def test_fewer_of_everything_as_in_imagenet():
    """The full number takes seconds: benchmarks/partition.py deals it."""
    dataset = load(imagenet21k, num_classes=500, num_clients=600, images=200_000, test_images=100)
    assert all(len(np.unique(dataset.train.labels[held])) == 20 for held in dataset.clients)
    assert dataset.test.labels.max() < 500


def test_a_picture_is_always_the_same_and_like_others_of_its_class():
    labels = np.array([0, 0, 0, 1, 1, 1])
    made = Procedural(labels, size=32, seed=0)
    everything = made[:]
    assert everything.shape == made.shape == (6, 32, 32, 3) and everything.dtype == made.dtype == np.uint8
    np.testing.assert_array_equal(made[np.array([[4, 1]], np.int32)], everything[[[4, 1]]])
    np.testing.assert_array_equal(Procedural(labels, size=32, seed=0)[2:5], everything[2:5])
    flat = everything.reshape(6, -1).astype(float)
    within, between = np.abs(flat[0] - flat[1]).mean(), np.abs(flat[0] - flat[3]).mean()
    assert 0 < within < between / 1.5
    other = Procedural(labels, size=32, seed=0, first=6)[:]
    assert all((a != b).any() for a in everything for b in other)


@pytest.mark.parametrize("config_file", [sop, landmarks])
def test_clients_may_hold_a_few_of_very_many_classes(config_file):
    dataset = load(config_file, num_classes=100_000_000)
    shown = np.unique(dataset.train.labels)
    assert dataset.num_classes == 100_000_000 and len(shown) <= len(dataset.clients) * 90
    assert shown.max() > 90_000_000 > 10_000_000 > shown.min() >= 0  # from all over
    assert dataset.train.images[:3].shape == (3, 256, 256, 3)


def test_patterns_of_classes_are_their_own():
    made = patterns(np.array([0, 1, 2, 99_999_999]), seed=0)
    assert made.shape == (4, 8, 8, 3) and len(np.unique(made.reshape(4, -1), axis=0)) == 4
    assert (patterns(np.array([1]), seed=0)[0] == made[1]).all() and (
        patterns(np.array([1]), seed=1)[0] != made[1]
    ).any()
    many = patterns(np.arange(2000), seed=0)
    assert abs(many.mean() - 127.5) < 1 and abs(many.std() - 73.9) < 1  # all colours, as often as each other


def test_group_sizes_add_up():
    sizes = group_sizes(np.random.default_rng(0), 50, 137, 1.0)
    assert sizes.sum() == 137 and sizes.min() >= 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "regression"}, "data.task is 'regression'; choose one of"),
        ({"clients": "few"}, "data.clients is 'few'; choose one of equal, natural"),
        ({"images": 10}, "data.images is 10; it must be at least 11318"),
        ({"test_images": 1}, "data.test_images is 1; it must be at least 2"),
        ({"crop": 300}, "data.crop is 300, more than data.image_size, 256"),
    ],
)
def test_bad_options_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        load(sop, **changes)
