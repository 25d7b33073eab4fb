"""Top-1 over all classes: which row of W is nearest to an embedding."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fedss_jax.losses import normalize

BLOCK = 4096  # classes scored at a time; queries x all classes never exists whole

Pair = tuple[jax.Array, jax.Array]


@partial(jax.jit, static_argnames="block")
def predict(embeddings: jax.Array, class_matrix: jax.Array, block: int = BLOCK) -> jax.Array:
    """Embeddings [N, d], W [n, d] -> the class of the largest cosine [N]; the first of equals."""
    n, d = class_matrix.shape
    block = min(block, n)
    blocks = -(-n // block)
    unit = jnp.pad(normalize(class_matrix), ((0, blocks * block - n), (0, 0)))

    def best_so_far(best: Pair, part: Pair) -> tuple[Pair, None]:
        score, winner = best
        first, rows = part
        cosine = jnp.matmul(embeddings, rows.T, precision="highest")
        cosine = jnp.where(first + jnp.arange(block) < n, cosine, -jnp.inf)
        here, index = jnp.max(cosine, axis=1), jnp.argmax(cosine, axis=1)
        better = here > score
        return (jnp.where(better, here, score), jnp.where(better, first + index, winner)), None

    start = (jnp.full(len(embeddings), -jnp.inf), jnp.zeros(len(embeddings), jnp.int32))
    parts = (jnp.arange(blocks) * block, unit.reshape(blocks, block, d))
    (_, winner), _ = jax.lax.scan(best_so_far, start, parts)
    return winner


def accuracy(embeddings: jax.Array, class_matrix: jax.Array, labels: np.ndarray) -> float:
    return float(np.mean(np.asarray(predict(embeddings, class_matrix)) == labels))
