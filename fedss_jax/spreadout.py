"""FedAwS's server-side regularizer (Yu et al., arXiv 2004.10342): push class vectors that are too close apart.

reg(W) = sum over c, over c' != c, of max(0, margin - (1 - cos(w_c, w_c')))^2
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from fedss_jax.losses import normalize

BLOCK = 256  # rows of the Gram matrix that exist at a time


def _block_loss(
    class_matrix: jax.Array, rows: jax.Array, active: jax.Array, *, margin: float, neighbours: int
) -> jax.Array:
    """The terms of reg whose first class is among `rows` [BLOCK]; entries past n - 1 are padding."""
    n = class_matrix.shape[0]
    unit = normalize(class_matrix)
    is_row = rows < n
    rows = jnp.minimum(rows, n - 1)
    similarity = jnp.matmul(unit[rows], unit.T, precision="highest")  # [BLOCK, n]
    counts = (is_row & active[rows])[:, None] & active & (rows[:, None] != jnp.arange(n))
    too_close = jnp.where(counts, jnp.maximum(0.0, margin - 1 + similarity), 0.0)
    if 0 < neighbours < n - 1:
        too_close, _ = jax.lax.top_k(too_close, neighbours)
    return jnp.sum(too_close**2)


def step(
    class_matrix: jax.Array,
    touched: jax.Array,
    *,
    margin: float,
    step_size: float,
    neighbours: int,
    touched_only: bool,
) -> jax.Array:
    """One gradient step on reg. The n x n Gram matrix never exists whole.

    touched: [n] bool, the classes that some client held this round; with `touched_only` the sums run over these
    (which changes the sum, not its cost).
    neighbours: count only so many nearest classes of each class; 0 for all.
    """
    n = class_matrix.shape[0]
    active = touched if touched_only else jnp.ones(n, bool)
    block_grad = jax.grad(partial(_block_loss, margin=margin, neighbours=neighbours))
    blocks = jnp.arange(-(-n // BLOCK) * BLOCK).reshape(-1, BLOCK)

    def add(total: jax.Array, rows: jax.Array) -> tuple[jax.Array, None]:
        return total + block_grad(class_matrix, rows, active), None

    gradient, _ = jax.lax.scan(add, jnp.zeros_like(class_matrix), blocks)
    return class_matrix - step_size * gradient
