"""W, the class matrix [n, d]: where it starts, and how rows leave it and come back."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedss_jax.losses import normalize


def init(key: jax.Array, num_classes: int, dim: int, norm: float) -> jax.Array:
    """Random directions, all of one length.

    The length matters though logits are cosines: the gradient on a row goes with 1 / its length, so this is
    the learning rate of W relative to the encoder's.
    """
    return norm * normalize(jax.random.normal(key, (num_classes, dim)))


def gather(class_matrix: jax.Array, classes: jax.Array) -> jax.Array:
    """Rows [S, d]. Padding must hold a class that exists; what it gets is never used."""
    return class_matrix[classes]


def scatter_add(num_classes: int, classes: jax.Array, rows: jax.Array) -> jax.Array:
    """Sum of rows [..., d] by their class [...], as a dense [n, d]; padding must bring zeros."""
    dense = jnp.zeros((num_classes, rows.shape[-1]), rows.dtype)
    return dense.at[classes.reshape(-1)].add(rows.reshape(-1, rows.shape[-1]))
