"""Who holds what: ways to deal examples out to clients, and the padded arrays that the engine works on."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fedss_jax.types import Clients, Dataset


def equal_clients(labels: np.ndarray, classes_per_client: int, seed: int) -> list[np.ndarray]:
    """Clients of so many classes each, drawn at random; a client holds all examples of its classes."""
    classes = np.random.default_rng(seed).permutation(np.unique(labels))
    by_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels))[:-1])
    return [
        np.sort(np.concatenate([by_class[c] for c in classes[start : start + classes_per_client]]))
        for start in range(0, len(classes), classes_per_client)
    ]


def natural_clients(owners: Sequence[str]) -> list[np.ndarray]:
    """One client for each distinct owner of examples, in the owners' alphabetical order."""
    _, inverse = np.unique(np.asarray(owners), return_inverse=True)
    return np.split(np.argsort(inverse, kind="stable"), np.cumsum(np.bincount(inverse))[:-1])


def make_population(dataset: Dataset) -> tuple[Clients, int]:
    """The clients as padded arrays, and how many were left out because they hold nothing."""
    labels, n = np.asarray(dataset.train.labels), dataset.num_classes
    held = [np.asarray(examples, np.int32) for examples in dataset.clients if len(examples)]
    positives = [np.unique(labels[examples]) for examples in held]
    clients = Clients(
        client_id=jnp.arange(len(held)),
        num_examples=_lengths(held),
        examples=_pad(held, 0),
        positives=_pad(positives, n),
        num_positives=_lengths(positives),
    )
    return clients, len(dataset.clients) - len(held)


def _lengths(arrays: Sequence[np.ndarray]) -> jax.Array:
    return jnp.array([len(a) for a in arrays], jnp.int32)


def _pad(arrays: Sequence[np.ndarray], fill: int) -> jax.Array:
    """Arrays of several lengths as the rows of one, filled up to the longest."""
    padded = np.full((len(arrays), max(len(a) for a in arrays)), fill, np.int32)
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = array
    return jnp.asarray(padded)
