"""Exact nearest-neighbour retrieval: every image is a query against all the others.

For unit vectors the normalized Euclidean distance orders neighbours as the cosine does.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

QUERIES, GALLERY = 256, 16384  # the block of the similarity matrix that exists at a time
Pair = tuple[jax.Array, jax.Array]
MAX_NEIGHBOURS = 1000  # MAP@R is left out where classes are larger


@partial(jax.jit, static_argnames=("k", "queries", "gallery"))
def neighbours(embeddings: jax.Array, k: int, *, queries: int = QUERIES, gallery: int = GALLERY) -> jax.Array:
    """The k nearest others of each of embeddings [N, d], nearest first, the first of equals: int32 [N, k].

    A query is left out of its own results by its index. Needs k < N.
    """
    total, d = embeddings.shape
    queries, gallery = min(queries, total), min(gallery, total)

    def blocked(size: int) -> Pair:
        count = -(-total // size)
        padded = jnp.pad(embeddings, ((0, count * size - total), (0, 0)))
        return jnp.arange(count * size).reshape(count, size), padded.reshape(count, size, d)

    def search(query_block: Pair) -> jax.Array:
        query_index, query = query_block

        def merge(best: Pair, gallery_block: Pair) -> tuple[Pair, None]:
            score, winner = best
            index, vectors = gallery_block
            cosine = jnp.matmul(query, vectors.T, precision="highest")
            allowed = (index < total) & (index != query_index[:, None])
            here, column = jax.lax.top_k(jnp.where(allowed, cosine, -jnp.inf), min(k, gallery))
            # Earlier blocks stand first, so that the first of equals stays the first.
            score, choice = jax.lax.top_k(jnp.concatenate([score, here], axis=1), k)
            winner = jnp.concatenate([winner, index[column]], axis=1)
            return (score, jnp.take_along_axis(winner, choice, axis=1)), None

        start = (jnp.full((queries, k), -jnp.inf), jnp.full((queries, k), -1))
        (_, winner), _ = jax.lax.scan(merge, start, blocked(gallery))
        return winner

    return jax.lax.map(search, blocked(queries)).reshape(-1, k)[:total]


def scores(embeddings: jax.Array, labels: np.ndarray) -> dict[str, float]:
    """MAP@10 (always over 10, as in the paper) with its ceiling, MAP@R, Recall@{1, 10, 100}. Needs two images."""
    labels = np.asarray(labels)
    _, inverse, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    relevant = sizes[inverse] - 1  # [N]: how many right answers a query has
    k = min(len(labels) - 1, max(100, min(int(relevant.max()), MAX_NEIGHBOURS)))
    hits = labels[np.asarray(neighbours(embeddings, k))] == labels[:, None]  # [N, k]
    return metrics(hits, relevant)


def metrics(hits: np.ndarray, relevant: np.ndarray) -> dict[str, float]:
    """Hits [N, k]: whether the i-th neighbour is right; relevant [N]: how many are right in all."""
    ranks = np.arange(1, hits.shape[1] + 1)
    gain = np.cumsum(hits, axis=1) / ranks * hits  # precision at i where the i-th is right, else 0
    result = {
        "map10": gain[:, :10].sum(axis=1).mean() / 10,
        "map10_ceiling": np.minimum(relevant, 10).mean() / 10,
    }
    answerable = relevant > 0
    if answerable.any() and relevant.max() <= hits.shape[1]:
        within = ranks <= relevant[answerable, None]
        result["map_r"] = ((gain[answerable] * within).sum(axis=1) / relevant[answerable]).mean()
    result |= {f"recall{r}": hits[:, :r].any(axis=1).mean() for r in (1, 10, 100)}
    return {name: float(value) for name, value in result.items()}
