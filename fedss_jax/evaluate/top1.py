"""Top-1 over all classes: which row of W is nearest to an embedding."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from fedss_jax import parallel
from fedss_jax.losses import normalize
from fedss_jax.rows import Dense, Lazy

BLOCK = 4096  # classes scored at a time; queries x all classes never exists whole

Pair = tuple[jax.Array, jax.Array]
Predict = Callable[[np.ndarray, Any, jax.Array], jax.Array]


def make_predict(rows: Lazy | Dense, block: int = BLOCK) -> Predict:
    """predict(embeddings [N, d], what the server keeps of W, steps so far) -> the class of the largest cosine [N].

    The first of equals. Every device looks through its own rows, which are brought up to date block by block.
    """
    layout = rows.layout
    size = min(block, layout.share)

    def best_of_share(embeddings: jax.Array, kept: Any, steps: jax.Array) -> Pair:
        first = layout.first()

        def better(i: jax.Array, best: Pair) -> Pair:
            score, winner = best
            # The last block goes back a little, so that all have one size.
            start = jnp.minimum(i * size, layout.share - size)
            part = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, size), kept)
            classes = first + start + jnp.arange(size)
            unit = normalize(rows.current(part, steps))
            cosine = jnp.matmul(embeddings, unit.T, precision="highest")
            cosine = jnp.where(classes < layout.num_classes, cosine, -jnp.inf)
            here, index = jnp.max(cosine, axis=1), jnp.argmax(cosine, axis=1)
            is_better = here > score
            return jnp.where(is_better, here, score), jnp.where(is_better, classes[index], winner)

        count = len(embeddings)
        nobody = jnp.full(count, -jnp.inf), jnp.zeros(count, jnp.int32)
        return jax.tree.map(lambda a: a[None], jax.lax.fori_loop(0, -(-layout.share // size), better, nobody))

    @partial(jax.jit, out_shardings=NamedSharding(layout.mesh, parallel.REPLICATED))
    def predict(embeddings: jax.Array, kept: Any, steps: jax.Array) -> jax.Array:
        kept = rows.by_row(kept)
        if layout.sharded:
            specs = parallel.REPLICATED, layout.spec, parallel.REPLICATED
            scores, winners = layout.everywhere(best_of_share, specs, layout.spec)(embeddings, kept, steps)
        else:
            scores, winners = best_of_share(embeddings, kept, steps)
        return jnp.take_along_axis(winners, jnp.argmax(scores, axis=0)[None], axis=0)[0]

    return predict


def accuracy(predicted: jax.Array, labels: np.ndarray) -> float:
    return float(np.mean(np.asarray(predicted) == labels))
