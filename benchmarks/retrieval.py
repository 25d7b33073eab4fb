"""Exact nearest neighbours against faiss: as many vectors as Stanford Online Products has test pictures.

python -m benchmarks.retrieval [--count N] [--dim D] [--k K] [--repeats R]
"""

from __future__ import annotations

import os
import time

import faiss
import jax.numpy as jnp
import numpy as np

from benchmarks import results
from fedss_jax.evaluate.retrieval import neighbours


def main() -> None:
    parser = results.parser(__doc__)
    parser.add_argument("--count", type=int, default=60_502)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    flags = parser.parse_args()
    vectors = np.random.default_rng(0).standard_normal((flags.count, flags.dim), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = faiss.IndexFlatIP(flags.dim)
    index.add(vectors)
    faiss.omp_set_num_threads(len(os.sched_getaffinity(0)))
    on_device = jnp.asarray(vectors)
    search = neighbours.lower(on_device, flags.k).compile()

    seconds: dict[str, list[float]] = {"fedss_jax": [], "faiss IndexFlatIP": []}
    for _ in range(flags.repeats):  # in turns, as the machine may not be ours alone
        tick = time.perf_counter()
        found = np.asarray(search(on_device))
        seconds["fedss_jax"].append(time.perf_counter() - tick)
        tick = time.perf_counter()
        _, expected = index.search(vectors, flags.k + 1)  # it finds the query as well
        seconds["faiss IndexFlatIP"].append(time.perf_counter() - tick)
    others = np.array([[i for i in row if i != query][: flags.k] for query, row in enumerate(expected)])
    same = float((found == others).mean())
    medians = {name: float(np.median(times)) for name, times in seconds.items()}
    rows = [
        (
            name,
            f"{medians[name]:.2f}",
            f"{min(times):.2f} - {max(times):.2f}",
            f"{medians[name] / medians['fedss_jax']:.2f}",
        )
        for name, times in seconds.items()
    ]
    print(f"{flags.k} nearest of {flags.count:,} x {flags.dim}, exact; the same neighbours: {same:.4%}")
    print(results.table(("", "s", "(from - to)", "times ours"), rows))
    results.save(flags.out, "retrieval", {"seconds": seconds, "same": same})


if __name__ == "__main__":
    main()
