"""Layers that stay fast when every client has weights of its own.

Under vmap a convolution with per-client weights becomes a grouped convolution, which XLA runs several times slower
on a CPU than the same arithmetic as slices and one batched matrix product. So convolutions here are that.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

# float32 is to mean float32 on every device; by default TPUs and GPUs round the factors of a product. It changes
# nothing for bfloat16.
PRECISION = "highest"


def space_to_depth(x: jax.Array, block: int) -> jax.Array:
    """[B, H, W, C] -> [B, H / block, W / block, block * block * C]."""
    b, h, w, c = x.shape
    x = x.reshape(b, h // block, block, w // block, block, c)
    return x.swapaxes(2, 3).reshape(b, h // block, w // block, block * block * c)


def patches(x: jax.Array, kernel: int, stride: int) -> jax.Array:
    """Every kernel x kernel window, "SAME" padding: [B, H, W, C] -> [B, ceil(H / s), ceil(W / s), k * k * C]."""
    height, width = (-(-size // stride) for size in x.shape[1:3])
    margins = [
        max((out - 1) * stride + kernel - size, 0) for out, size in zip((height, width), x.shape[1:3], strict=True)
    ]
    x = jnp.pad(x, [(0, 0), *((m // 2, m - m // 2) for m in margins), (0, 0)])
    if kernel % stride == 0 and x.shape[1] % stride == 0 and x.shape[2] % stride == 0:
        # Windows that overlap by whole strides: fold the stride into channels, and few slices remain.
        x, kernel, stride = space_to_depth(x, stride), kernel // stride, 1
    slices = [
        x[:, i : i + (height - 1) * stride + 1 : stride, j : j + (width - 1) * stride + 1 : stride]
        for i in range(kernel)
        for j in range(kernel)
    ]
    return jnp.concatenate(slices, axis=-1)


class Conv(nn.Module):
    """A dense convolution as patches and one matrix product."""

    features: int
    kernel: int
    stride: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        product = nn.Dense(self.features, use_bias=False, dtype=self.dtype, precision=PRECISION)
        return product(patches(x, self.kernel, self.stride))
