"""Random changes of a picture, on the device, cheap enough not to show beside the training itself.

A general warp is a gather per pixel. A small affine map is also a product of one-dimensional ones: a scale and a
shift along each axis (a matrix product), and a slant (a few shifted multiply-adds).
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


def _slant(image: jax.Array, slope: jax.Array, max_slope: float) -> jax.Array:
    """Shifts row i of an image [H, W, C] by slope * (i - middle) pixels, as italics do."""
    height, width, _ = image.shape
    shift = (jnp.arange(height) - (height - 1) / 2) * slope
    reach = math.ceil(max_slope * (height - 1) / 2)
    padded = jnp.pad(image, ((0, 0), (reach, reach), (0, 0)))
    slanted = jnp.zeros_like(image)
    for by in range(-reach, reach + 1):
        slanted += _hat(shift - by)[:, None, None] * padded[:, reach + by : reach + by + width]
    return slanted


@functools.cache
def _noise() -> np.ndarray:
    return np.random.default_rng(0).standard_normal(1 << 16, dtype=np.float32)


@dataclasses.dataclass(frozen=True)
class Jitter:
    """Shift, scale, slant and noise by up to the given amounts. Called with a key and an image [H, W, C]."""

    shift: float = 2.0  # pixels
    scale: float = 0.1  # a share of the size
    slant: float = 0.1  # pixels a row
    noise: float = 0.1  # standard deviation, on pixels in [-1, 1]
    background: float = -1.0

    def __call__(self, key: jax.Array, image: jax.Array) -> jax.Array:
        height, width, _ = image.shape
        draw = jax.random.uniform(key, (6,), minval=-1.0, maxval=1.0)
        image = image - self.background  # so that what moves in from outside is background
        rows = _resample(height, 1 + self.scale * draw[0], self.shift * draw[1])
        columns = _resample(width, 1 + self.scale * draw[2], self.shift * draw[3])
        image = jnp.einsum("ih,hwc,jw->ijc", rows, image, columns, precision="highest")
        if self.slant:
            image = _slant(image, self.slant * draw[4], self.slant)
        if self.noise:
            # Fresh noise for each pixel would cost more than all the rest: a stretch of one long fixed noise, from a
            # random place, is as good.
            noise = jnp.asarray(_noise())
            place = ((draw[5] + 1) / 2 * (noise.size - image.size)).astype(jnp.int32)
            stretch = jax.lax.dynamic_slice(noise, (place,), (image.size,))
            image = image + self.noise * stretch.reshape(image.shape)
        return image + self.background


def pixels(images: jax.Array) -> jax.Array:
    """uint8 -> float32 in [-1, 1]; ready-made float features pass through."""
    return images / 127.5 - 1.0 if images.dtype == jnp.uint8 else images


def nothing(key: jax.Array, image: jax.Array) -> jax.Array:
    return image
