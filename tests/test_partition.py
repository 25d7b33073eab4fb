"""Clients of just so many labels."""

from __future__ import annotations

import numpy as np
import pytest

from fedss_jax.data.partition import dealt_clients, natural_clients
from fedss_jax.types import UserError


def check(labels: np.ndarray, clients: list[np.ndarray], num_clients: int, labels_per_client: int) -> None:
    """Every example at one client, and just so many labels at each."""
    np.testing.assert_array_equal(np.sort(np.concatenate(clients)), np.arange(len(labels)))
    assert len(clients) == num_clients
    assert {len(np.unique(labels[held])) for held in clients} == {labels_per_client}
    assert all(np.all(np.diff(held) > 0) for held in clients)


@pytest.mark.parametrize("seed", range(40))
def test_any_sizes_that_fit_are_dealt_exactly(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 2 + rng.integers(1, 60), rng.integers(3, 40))
    labels = rng.permutation(np.repeat(rng.permutation(1000)[: len(sizes)], sizes))
    most = [np.minimum(sizes, k).sum() for k in range(100)]
    fits = [(k, p) for k in range(1, 100) for p in range(1, len(sizes) + 1) if len(sizes) <= k * p <= most[k]]
    num_clients, labels_per_client = fits[rng.integers(len(fits))]
    check(labels, dealt_clients(labels, num_clients, labels_per_client, seed), num_clients, labels_per_client)


@pytest.mark.parametrize("seed", range(3))
def test_sizes_are_nearly_equal_where_classes_are_alike(seed):
    labels = np.repeat(np.arange(300), np.random.default_rng(seed).integers(8, 13, 300))
    clients = dealt_clients(labels, 60, 8, seed)
    check(labels, clients, 60, 8)
    sizes = [len(held) for held in clients]
    assert max(sizes) - min(sizes) <= 4  # of 50


def test_one_large_class_is_shared_by_many():
    labels = np.repeat(np.arange(10), [500] + [20] * 9)
    clients = dealt_clients(labels, 20, 3, seed=0)
    check(labels, clients, 20, 3)
    assert sum(0 in labels[held] for held in clients) == 20


def test_the_seed_decides():
    labels = np.repeat(np.arange(50), 10)
    dealt = [[held.tolist() for held in dealt_clients(labels, 30, 4, seed)] for seed in (0, 0, 1)]
    assert dealt[0] == dealt[1] != dealt[2]


def test_stanford_online_products_full_size():
    """11,318 classes of 2 to 12 pictures, 59,551 in all, as the training part has: the paper's 596 clients of 20."""
    rng = np.random.default_rng(0)
    sizes = np.full(11_318, 2)
    for c in rng.choice(np.repeat(np.arange(11_318), 10), 59_551 - sizes.sum(), replace=False):
        sizes[c] += 1
    labels = rng.permutation(np.repeat(np.arange(11_318), sizes))
    assert len(labels) == 59_551 and sizes.max() <= 12
    clients = dealt_clients(labels, 596, 20, seed=0)
    check(labels, clients, 596, 20)
    assert {len(held) for held in clients} == {99, 100}


@pytest.mark.parametrize(("classes", "num_clients"), [(40, 10), (41, 11), (4, 1)])
def test_no_number_gives_the_fewest_that_hold_all_classes(classes, num_clients):
    labels = np.repeat(np.arange(classes), 5)
    check(labels, dealt_clients(labels, 0, 4, seed=0), num_clients, 4)


@pytest.mark.parametrize(
    ("num_clients", "labels_per_client", "message"),
    [
        (-1, 2, "data.num_clients is -1; it must be at least 0"),
        (3, -1, "data.labels_per_client is -1; it must be at least 0"),
        (0, -2, "data.labels_per_client is -2; it must be at least 0"),
        (3, 11, "data.labels_per_client is 11, but there are 10 training classes; lower it"),
        (3, 3, "3 clients of 3 labels cannot hold all 10 classes; raise data.num_clients to 4 or .* to 4"),
        (20, 3, "need 60 portions of a class, but 10 classes with 30 examples can be cut into 30; lower"),
    ],
)
def test_what_does_not_fit(num_clients, labels_per_client, message):
    with pytest.raises(UserError, match=message) as error:
        dealt_clients(np.repeat(np.arange(10), 3), num_clients, labels_per_client, 0)
    assert "\n" not in str(error.value)


def test_natural_clients_are_owners_in_order():
    clients = natural_clients(["b", "a", "b", "c"])
    assert [held.tolist() for held in clients] == [[1], [0, 2], [3]]
    assert [held.tolist() for held in natural_clients(np.array([10, 9, 10]))] == [[1], [0, 2]]
