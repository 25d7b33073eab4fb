"""W as it is after some steps of the server, on the host."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from fedss_jax import parallel
from fedss_jax.rows import Dense, Lazy

BLOCK = 65_536  # rows that are fetched at a time; no device ever has all of them


def class_matrix(rows: Lazy | Dense, kept: Any, steps: jax.Array) -> np.ndarray:
    """All rows up to date, [n, d]. kept: what the server keeps of W."""
    n = rows.layout.num_classes
    size = min(BLOCK, n)

    @partial(jax.jit, out_shardings=NamedSharding(rows.layout.mesh, parallel.REPLICATED))
    def block(kept: Any, steps: jax.Array, first: jax.Array) -> jax.Array:
        classes = first + jnp.arange(size)
        return rows.current(rows.layout.take(rows.by_row(kept), classes), steps)

    parts = [np.asarray(block(kept, steps, np.int32(first))) for first in range(0, n, size)]
    return np.concatenate(parts)[:n]
