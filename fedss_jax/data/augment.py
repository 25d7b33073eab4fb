"""Random changes of a picture, on the device, cheap enough not to show beside the training itself.

A general warp is a gather per pixel. A small affine map is also a product of one-dimensional ones: a scale and a
shift along each axis (a matrix product), and a slant along each axis (a few shifted multiply-adds).
"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np


def _hat(distance: jax.Array) -> jax.Array:
    """The weight of linear interpolation at a distance in pixels."""
    return jnp.maximum(0.0, 1.0 - jnp.abs(distance))


def _resample(size: int, scale: jax.Array, shift: jax.Array) -> jax.Array:
    """The matrix [size, size] that scales a row of pixels about its middle, then shifts it."""
    middle = (size - 1) / 2
    source = (jnp.arange(size) - middle) * scale + middle + shift
    return _hat(source[:, None] - jnp.arange(size))


def _slant(image: jax.Array, slope: jax.Array, max_slope: float, axis: int) -> jax.Array:
    """Moves an image [H, W, C] along an axis (0 or 1) by slope * (distance from the middle of the other axis)."""
    size, other = image.shape[axis], image.shape[1 - axis]
    shift = jnp.expand_dims((jnp.arange(other) - (other - 1) / 2) * slope, (axis, 2))
    reach = math.ceil(max_slope * (other - 1) / 2)
    padded = jnp.pad(image, [(reach, reach) if i == axis else (0, 0) for i in range(3)])
    moved = jnp.zeros_like(image)
    for by in range(-reach, reach + 1):
        part = jax.lax.slice_in_dim(padded, reach + by, reach + by + size, axis=axis)
        moved = moved + _hat(shift - by) * part
    return jax.lax.optimization_barrier(moved)


@functools.cache
def _noise(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


@dataclasses.dataclass(frozen=True)
class Jitter:
    """Shift, scale, slant and noise by up to the given amounts. Called with a key and an image [H, W, C]."""

    shift: float = 2.0  # pixels
    scale: float = 0.1  # a share of the size
    slant: float = 0.1  # pixels a row
    noise: float = 0.1  # standard deviation, on pixels in [-1, 1]
    background: float = -1.0

    def __call__(self, key: jax.Array, image: jax.Array) -> jax.Array:
        height, width, channels = image.shape
        draw = jax.random.uniform(key, (8,), minval=-1.0, maxval=1.0)
        image = image - self.background  # so that what moves in from outside is background
        rows = _resample(height, 1 + self.scale * draw[0], self.shift * draw[1])
        columns = _resample(width, 1 + self.scale * draw[2], self.shift * draw[3])
        image = jax.lax.optimization_barrier(jnp.einsum("ih,hwc,jw->ijc", rows, image, columns))
        if self.slant:
            image = _slant(image, self.slant * draw[4], self.slant, axis=0)
            image = _slant(image, self.slant * draw[5], self.slant, axis=1)
        if self.noise:
            # Fresh noise for each pixel would cost more than all the rest: a window of one fixed picture of noise,
            # at a random place, is as good.
            tile = jnp.asarray(_noise((4 * height, 4 * width, channels)))
            corner = (draw[6:] + 1) / 2 * jnp.array([3 * height, 3 * width])
            place = (*corner.astype(jnp.int32), 0)
            image = image + self.noise * jax.lax.optimization_barrier(jax.lax.dynamic_slice(tile, place, image.shape))
        return image + self.background


def nothing(key: jax.Array, image: jax.Array) -> jax.Array:
    return image
