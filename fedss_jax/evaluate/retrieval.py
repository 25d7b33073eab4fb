"""Exact nearest-neighbour retrieval: every image is a query against all the others.

For unit vectors the normalized Euclidean distance orders neighbours as the cosine does.
"""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

QUERIES, GALLERY = 256, 65536  # the block of the similarity matrix that exists at a time
Pair = tuple[jax.Array, jax.Array]
MAX_NEIGHBOURS = 1000  # MAP@R is left out where classes are larger


@partial(jax.jit, static_argnames=("k", "queries", "gallery"))
def neighbours(
    embeddings: jax.Array, k: int, rows: jax.Array | None = None, *, queries: int = QUERIES, gallery: int = GALLERY
) -> jax.Array:
    """The k nearest others of each of embeddings [N, d], nearest first, the first of equals: int32 [N, k].

    rows [Q]: only of these, [Q, k]. A query is left out of its own results by its index. Needs k < N.
    """
    total = len(embeddings)
    wanted, asked = (jnp.arange(total), embeddings) if rows is None else (rows, embeddings[rows])
    queries, gallery = min(queries, len(wanted)), min(gallery, total)
    width = group_width(gallery, k)
    gallery = -(-gallery // width) * width
    _, query_vectors = blocks(asked, queries)
    query_rows = jnp.pad(wanted, (0, -len(wanted) % queries)).reshape(-1, queries)
    gallery_start, gallery_vectors = blocks(embeddings, gallery)
    # Members of a group stand a stride apart, so that the groups' maxima are maxima of long rows.
    gallery_vectors = gallery_vectors.reshape(len(gallery_start), gallery // width, width, -1).swapaxes(1, 2)

    def search(query_block: Pair) -> jax.Array:
        query_index, query = query_block

        def merge(best: Pair, gallery_block: Pair) -> tuple[Pair, None]:
            score, winner = best
            here, index = nearest(query, query_index, *gallery_block, total, k)
            # Earlier blocks stand first, so that the first of equals stays the first.
            score, choice = jax.lax.top_k(jnp.concatenate([score, here], axis=1), k)
            winner = jnp.concatenate([winner, index], axis=1)
            return (score, jnp.take_along_axis(winner, choice, axis=1)), None

        nobody = (jnp.full((queries, k), -jnp.inf), jnp.full((queries, k), -1))
        (_, winner), _ = jax.lax.scan(merge, nobody, (gallery_start, gallery_vectors))
        return winner

    return jax.lax.map(search, (query_rows, query_vectors)).reshape(-1, k)[: len(wanted)]


def blocks(vectors: jax.Array, size: int) -> Pair:
    """Vectors [N, d] in blocks [blocks, size, d] filled up with zeros, and the index of each block's first."""
    count = -(-len(vectors) // size)
    padded = jnp.pad(vectors, ((0, count * size - len(vectors)), (0, 0)))
    return size * jnp.arange(count), padded.reshape(count, size, -1)


def group_width(gallery: int, k: int) -> int:
    """Members of a group: a power of two, such that there are about as many groups as members of k groups."""
    return 2 ** int(math.log2(max(1.0, min(32.0, math.sqrt(gallery / k)))))


def top_k(rows: jax.Array, k: int) -> Pair:
    """As jax.lax.top_k of rows [Q, n], in less time where n is large."""
    count, n = rows.shape
    width = group_width(n, k)
    if width < 4:
        return jax.lax.top_k(rows, k)
    padded = jnp.pad(rows, ((0, 0), (0, -n % width)), constant_values=-jnp.inf).reshape(count, -1, width)
    _, chosen = jax.lax.top_k(jnp.max(padded, axis=2), k)
    chosen = jnp.sort(chosen, axis=1)
    members = jnp.take_along_axis(padded, chosen[..., None], axis=1).reshape(count, -1)
    score, place = jax.lax.top_k(members, k)
    return score, jnp.take_along_axis(chosen, place // width, axis=1) * width + place % width


def nearest(
    query: jax.Array, query_index: jax.Array, start: jax.Array, vectors: jax.Array, total: int, k: int
) -> tuple[jax.Array, jax.Array]:
    """The k largest cosines of each query with a block of the gallery, and their indices, or fewer: [Q, <= k].

    vectors [width, groups, d]: member j of group g has the index start + g * width + j.

    The k nearest are all in the k groups with the largest maxima (the first of equals), as each of these has someone
    who comes before all of any other group. One group more makes up for the query itself, and one for the group that
    zeros fill up. So only the maxima of groups and the members of a few need sorting, not the whole row.
    """
    width, groups, d = vectors.shape
    flat = jnp.matmul(query, vectors.reshape(-1, d).T, precision="highest")
    cosine = flat.reshape(-1, width, groups)
    largest = jnp.max(cosine, axis=1)
    largest = jnp.where(start + width * jnp.arange(groups) < total, largest, -jnp.inf)
    _, chosen = top_k(largest, min(k + 2, groups))
    chosen = jnp.sort(chosen, axis=1)  # in the order of the gallery, for the first of equals to be the first
    members = jnp.take_along_axis(cosine, chosen[:, None], axis=2).swapaxes(1, 2).reshape(len(query), -1)
    index = (start + width * chosen[..., None] + jnp.arange(width)).reshape(len(query), -1)
    allowed = (index < total) & (index != query_index[:, None])
    score, column = jax.lax.top_k(jnp.where(allowed, members, -jnp.inf), min(k, members.shape[1]))
    return score, jnp.take_along_axis(index, column, axis=1)


def scores(embeddings: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """MAP@10 (always over 10, as in the paper) with its ceiling, MAP@R, Recall@{1, 10, 100}. Needs two images."""
    labels = np.asarray(labels)
    _, inverse, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    relevant = sizes[inverse] - 1  # [N]: how many right answers a query has
    k = min(len(labels) - 1, max(100, min(int(relevant.max()), MAX_NEIGHBOURS)))
    hits = labels[np.asarray(neighbours(embeddings, k))] == labels[:, None]  # [N, k]
    return metrics(hits, relevant)


def precision10(hits: np.ndarray) -> np.ndarray:
    """What each query adds to MAP@10: the precision at every right answer among ten, over ten. Hits [N, k] -> [N]"""
    ranks = np.arange(1, min(10, hits.shape[1]) + 1)
    first = hits[:, :10]
    return (np.cumsum(first, axis=1) / ranks * first).sum(axis=1) / 10


def metrics(hits: np.ndarray, relevant: np.ndarray) -> dict[str, float]:
    """Hits [N, k]: whether the i-th neighbour is right; relevant [N]: how many are right in all."""
    ranks = np.arange(1, hits.shape[1] + 1)
    gain = np.cumsum(hits, axis=1) / ranks * hits  # precision at i where the i-th is right, else 0
    result = {
        "map10": precision10(hits).mean(),
        "map10_ceiling": np.minimum(relevant, 10).mean() / 10,
    }
    answerable = relevant > 0
    if answerable.any() and relevant.max() <= hits.shape[1]:
        within = ranks <= relevant[answerable, None]
        result["map_r"] = ((gain[answerable] * within).sum(axis=1) / relevant[answerable]).mean()
    result |= {f"recall{r}": hits[:, :r].any(axis=1).mean() for r in (1, 10, 100)}
    return {name: float(value) for name, value in result.items()}
