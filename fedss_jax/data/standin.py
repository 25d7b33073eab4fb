"""A stand-in for data that is not at hand: the same counts of classes, clients and images, on pictures that are made
up as they are asked for. So the real shapes run anywhere, with nothing on disk.

A class is a coarse pattern of colours, a picture of it the pattern with a disturbance of its own. There may be more
classes than the clients can hold, such as a hundred million: then nobody here has a picture of most of them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from fedss_jax.data.augment import crop_and_flip
from fedss_jax.data.partition import dealt_clients
from fedss_jax.data.splits import TASKS, check_at_least, check_choice
from fedss_jax.types import Dataset, Examples

GRID = 8  # a pattern has so many patches a side
DISTURBANCES = 4096
DISTURBANCE = 0.35  # against the pattern's own strength
CHUNK = 256  # pictures made at a time, to bound memory


class Procedural:
    """Pictures [N, size, size, 3] uint8 of the given labels [N], made when they are asked for, always the same.

    first: the number of the first picture, so that parts do not repeat each other.
    """

    def __init__(self, labels: np.ndarray, *, size: int, seed: int, first: int = 0):
        self._labels, self._seed, self._first = labels, seed, first
        self.shape = (len(labels), size, size, 3)
        self.dtype = np.dtype(np.uint8)
        # A table, indexed by row: a generator for every picture would take longer than the picture.
        disturbance = np.random.default_rng((seed, 1)).uniform(-128, 128, (DISTURBANCES, GRID, GRID, 3))
        self._disturbances = (DISTURBANCE * disturbance).astype(np.float32)
        self._patch = np.arange(size) * GRID // size  # [size] which patch a pixel belongs to

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, rows: Any) -> np.ndarray:
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        rows = np.asarray(rows)
        flat = rows.reshape(-1)
        made = np.empty((len(flat), *self.shape[1:]), np.uint8)
        for start in range(0, len(flat), CHUNK):
            made[start : start + CHUNK] = self._make(flat[start : start + CHUNK])
        return made.reshape(*rows.shape, *self.shape[1:])

    def _make(self, rows: np.ndarray) -> np.ndarray:
        # Neighbouring rows are pictures of one class: a multiplier keeps their disturbances from being neighbours.
        which = (rows.astype(np.int64) + self._first) * 2654435761 % DISTURBANCES
        coarse = np.clip(patterns(self._labels[rows], self._seed) + self._disturbances[which], 0, 255).astype(np.uint8)
        return coarse[:, :, self._patch][:, self._patch]  # columns first: then whole rows of pixels are copied


def patterns(classes: np.ndarray, seed: int) -> np.ndarray:
    """Those of some classes [N]: [N, GRID, GRID, 3] uint8. Worked out, as a table for all classes may be too large.

    Eight bytes at a time, from their number by splitmix64 (Steele, Lea and Flood, 2014).
    """
    words = GRID * GRID * 3 // 8
    number = classes.astype(np.uint64)[:, None] * np.uint64(words) + np.arange(words, dtype=np.uint64)
    mixed: np.ndarray = (number + np.uint64((seed << 40) % 2**64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return np.ascontiguousarray(mixed).view(np.uint8).reshape(-1, GRID, GRID, 3)


def load(
    *,
    split: str,
    task: str,
    clients: str,
    num_classes: int,
    num_clients: int,
    labels_per_client: int,
    images: int,
    test_classes: int,
    test_images: int,
    image_size: int,
    crop: int,
    flip: bool,
    seed: int,
) -> Dataset:
    """As many of everything as asked for; if the clients cannot hold all classes, they hold a random part of them.

    clients: "equal" (all of labels_per_client labels and about as many images) or "natural" (of all sizes, and
    labels_per_client on average).
    test_classes: retrieval only; classification is tested on the training classes.
    """
    for name, value, known in (
        ("data.task", task, TASKS),
        ("data.clients", clients, ("equal", "natural")),
        ("eval.split", split, ("test",)),  # nothing is worth tuning here
    ):
        check_choice(name, value, known)
    shown = min(num_classes, num_clients * labels_per_client)  # classes of which there are pictures
    for name, number, least in (
        ("num_classes", num_classes, 2),
        ("num_clients", num_clients, 1),
        ("labels_per_client", labels_per_client, 1),
        ("images", images, shown),
        ("test_classes", test_classes, 1 if task == "retrieval" else 0),
        ("test_images", test_images, 2),
        ("seed", seed, 0),
    ):
        check_at_least(name, number, least)
    rng = np.random.default_rng(seed)
    if clients == "equal":
        labels = np.repeat(np.arange(shown, dtype=np.int32), group_sizes(rng, shown, images, 0.5))
        held = dealt_clients(labels, num_clients, labels_per_client, seed)
    else:
        labels, held = _natural(rng, shown, num_clients, labels_per_client, images)
    if shown < num_classes:
        labels = np.sort(rng.choice(num_classes, shown, replace=False)).astype(np.int32)[labels]
    if task == "retrieval":
        test_labels = num_classes + np.arange(test_images, dtype=np.int32) % test_classes
    else:
        test_labels = rng.integers(num_classes, size=test_images, dtype=np.int32)
    make = partial(Procedural, size=image_size, seed=seed)
    return Dataset(
        name="stand-in",
        task=task,
        num_classes=num_classes,
        train=Examples(make(labels), labels),
        clients=held,
        test=Examples(make(test_labels, first=images), test_labels),
        transform=crop_and_flip(image_size, crop, flip),
    )


def group_sizes(rng: np.random.Generator, groups: int, total: int, spread: float) -> np.ndarray:
    """Group sizes of at least 1 that add up to a total, log-normal about their mean."""
    weight = rng.lognormal(0.0, spread, groups)
    spare = total - groups
    exact = np.cumsum(weight) / weight.sum() * spare
    return 1 + np.diff(np.rint(exact).astype(np.int64), prepend=0)


def _natural(
    rng: np.random.Generator, num_classes: int, num_clients: int, labels_per_client: int, images: int
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Labels [N], and what each client holds: people who took few or many pictures, mostly of what is popular."""
    sizes = group_sizes(rng, num_clients, images, 0.6)
    popularity = rng.lognormal(0.0, 1.0, num_classes)
    popularity /= popularity.sum()
    share = labels_per_client * num_clients / images  # of a client's pictures that show something it has not yet
    labels = []
    for size in sizes:
        distinct = int(np.clip(round(share * size), 1, min(size, num_classes)))
        own = rng.choice(num_classes, distinct, replace=False, p=popularity)
        labels.append(np.concatenate([own, rng.choice(own, size - distinct)]))
    ends = np.cumsum(sizes)
    return np.concatenate(labels).astype(np.int32), np.split(np.arange(images), ends[:-1])
