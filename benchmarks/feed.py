"""Whether pictures arrive in time: rounds of Stanford Online Products' size, read from a memory-mapped file.

    python -m benchmarks.feed [pictures in the file] [folder for it]

An accelerator is stood in for by sleep: it takes so long for a round, and none of the host's cores. The copy over
the bus to a real one is not in these numbers.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
from jax.sharding import NamedSharding

from fedss_jax import parallel
from fedss_jax.data.store import Rows
from fedss_jax.feed import StreamFeed

CLIENTS, EXAMPLES, SIZE, ROUNDS, WARM_UP = 32, 100, 256, 20, 4


def make_file(path: Path, pictures: int) -> np.ndarray:
    """Pictures [N, SIZE, SIZE, 3] on disk."""
    images = np.memmap(path, np.uint8, "w+", shape=(pictures, SIZE, SIZE, 3))
    block = np.random.default_rng(0).integers(0, 256, (64, SIZE, SIZE, 3), np.uint8)
    for start in range(0, pictures, 64):
        images[start : start + 64] = block[: pictures - start]
    images.flush()
    return np.memmap(path, np.uint8, "r", shape=images.shape)


def rows_of(pictures: int, round: int) -> np.ndarray:
    return np.random.default_rng(round).integers(0, pictures, (CLIENTS, EXAMPLES))


def measure(images: Rows, compute_seconds: float) -> tuple[float, float]:
    """Seconds waited for pictures once the first rounds are over, and seconds in all since then."""
    sharding = NamedSharding(parallel.make_mesh(jax.devices()[:1]), parallel.BY_CLIENT)
    waited = 0.0
    with StreamFeed(images, lambda round: rows_of(len(images), round), ROUNDS, sharding) as feed:
        for round in range(ROUNDS):
            if round == WARM_UP:
                waited, began = 0.0, time.perf_counter()
            asked = time.perf_counter()
            pictures = feed.stored(round).images.block_until_ready()
            waited += time.perf_counter() - asked
            time.sleep(compute_seconds)
            del pictures
        return waited, time.perf_counter() - began


def main(pictures: int, folder: str | None) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        array = make_file(Path(temporary, "pixels.u8"), pictures)
        images = Rows(array, np.arange(pictures))
        images[rows_of(pictures, 0)]  # what it needs is then in memory
        began = time.perf_counter()
        for round in range(3):
            images[rows_of(pictures, round)]
        rate = 3 * CLIENTS * EXAMPLES / (time.perf_counter() - began)
        print(f"gathering alone: {rate:,.0f} pictures/s ({rate * SIZE * SIZE * 3 / 1e9:.1f} GB/s)")
        print("computing a round   waiting for pictures")
        for compute_seconds in (0.1, 0.2, 0.3, 0.5):
            waited, total = measure(images, compute_seconds)
            print(f"{compute_seconds:>15.1f} s   {waited:.2f} of {total:.2f} s ({waited / total:.1%})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8000, sys.argv[2] if len(sys.argv) > 2 else None)
