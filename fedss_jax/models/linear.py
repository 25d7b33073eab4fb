"""An encoder for ready-made feature vectors, such as those of a frozen backbone."""

from __future__ import annotations

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedss_jax.models.layers import PRECISION


class Linear(nn.Module):
    """Feature vectors [B, F] -> [B, dim], through ReLU layers of the given widths, if any."""

    dim: int
    dtype: jnp.dtype = jnp.float32
    hidden: Sequence[int] = ()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if x.ndim != 2:
            raise ValueError(f"it takes feature vectors [B, F], not inputs {[*x.shape]}")
        for number, features in enumerate(self.hidden, 1):
            layer = nn.Dense(features, dtype=self.dtype, precision=PRECISION, name=f"hidden_{number}")
            x = nn.relu(layer(x))
        return nn.Dense(self.dim, dtype=self.dtype, precision=PRECISION, name="head")(x)
