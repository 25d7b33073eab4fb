"""Scaled cosine logits and the softmax over a chosen set of classes. Pure functions of arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def normalize(x: jax.Array) -> jax.Array:
    """Rows of x as unit vectors. A zero row stays zero and gets a zero gradient."""
    square = jnp.sum(x * x, axis=-1, keepdims=True)
    return x * jnp.where(square > 0, jax.lax.rsqrt(jnp.where(square > 0, square, 1.0)), 0.0)


def cosine_logits(embeddings: jax.Array, rows: jax.Array, scale: float) -> jax.Array:
    """Unit embeddings [B, d], rows of the class matrix [S, d] -> [B, S]."""
    return scale * jnp.matmul(embeddings, normalize(rows).T, precision="highest")


def sampled_softmax(
    logits: jax.Array, is_target: jax.Array, competes: jax.Array, log_inclusion: jax.Array
) -> jax.Array:
    """-o'_t + log sum over the competing classes of exp(o'), with o' = o - log_inclusion. [B]

    logits [B, S]; is_target [B, S] bool, one in each row; competes [S] bool; log_inclusion [S].
    The target always counts, whatever `competes` says.
    """
    adjusted = logits - log_inclusion
    log_sum = jax.nn.logsumexp(jnp.where(competes | is_target, adjusted, -jnp.inf), axis=-1)
    return log_sum - jnp.sum(jnp.where(is_target, adjusted, 0.0), axis=-1)
