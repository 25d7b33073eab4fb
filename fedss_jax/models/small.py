"""A small encoder for small pictures: on a CPU matrix products and slices only, so that thousands of per-client
copies of it train in a second.
"""

from __future__ import annotations

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedss_jax.models.layers import Conv, GroupNorm, check_images, dense, form_of


class SmallEncoder(nn.Module):
    """Convolutions with GroupNorm, each given as (features, kernel, stride), then one dense layer to the embedding."""

    dim: int
    dtype: jnp.dtype = jnp.float32
    layers: Sequence[Sequence[int]] = ((32, 8, 4), (64, 3, 2))
    groups: int = 4
    convolution: str = "auto"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        check_images(x)
        form = form_of(self.convolution)
        for number, (features, kernel, stride) in enumerate(self.layers):
            x = Conv(features, kernel, stride, self.dtype, form, name=f"Conv_{number}")(x)
            x = nn.relu(GroupNorm(self.groups, self.dtype, epsilon=1e-6, name=f"GroupNorm_{number}")(x))
        return dense(self.dim, form, self.dtype, name="Dense_0")(x.reshape(x.shape[0], -1))
