"""How long it takes to split and deal out indexes of full size, and in how much memory.

python -m benchmarks.partition
"""

from __future__ import annotations

import resource
import time

import numpy as np

from fedss_jax.data.augment import UNCHANGED
from fedss_jax.data.partition import dealt_clients, make_population
from fedss_jax.data.splits import hold_out
from fedss_jax.data.standin import Procedural, group_sizes
from fedss_jax.types import Dataset, Examples


def peak_gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(name: str, classes: int, pictures: int, test_share: float, clients: int, labels_per_client: int) -> str:
    """From labels in the order of a listing to the padded arrays that the engine takes."""
    sizes = group_sizes(np.random.default_rng(0), classes, pictures, 0.5)
    labels = np.repeat(np.arange(classes, dtype=np.int32), sizes)
    before, began = peak_gigabytes(), time.perf_counter()
    if test_share:
        train, _ = hold_out(labels, "classification", test_share, seed=0)
        labels = labels[train]
    held = dealt_clients(labels, clients, labels_per_client, seed=0)
    examples = Examples(Procedural(labels, size=256, seed=0), labels)
    make_population(Dataset(name, "classification", classes, examples, held, examples, UNCHANGED))
    seconds = time.perf_counter() - began
    lengths = np.array([len(one) for one in held])
    return (
        f"{name}: {len(labels):,} training images of {classes:,} classes at {len(held):,} clients of"
        f" {lengths.min()} to {lengths.max()} images: {seconds:.2f} s, peak memory {before:.2f} GB before,"
        f" {peak_gigabytes():.2f} GB after"
    )


if __name__ == "__main__":
    print(measure("Stanford Online Products", 11_318, 59_551, 0.0, 596, 20))
    print(measure("ImageNet-21k", 21_841, 14_200_000, 0.2, 25_691, 20))
