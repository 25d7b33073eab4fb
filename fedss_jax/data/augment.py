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

from fedss_jax.data.splits import check_at_least
from fedss_jax.types import Transform, UserError

# Of red, green and blue, on a scale to 1.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


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


def _cut(image: jax.Array, top: jax.Array, left: jax.Array, mirror: jax.Array, height: int, width: int) -> jax.Array:
    """A window of a uint8 image [H, W, C], mirrored left to right or not: [height, width, C], values unchanged.

    On CPU and GPU a slice at a random place is nearly free. Under vmap on a TPU it becomes a loop over the images, and
    picking rows and columns by matrix products takes a twentieth of its time (by the compiler's estimate); that is
    exact, as bfloat16 holds the whole numbers up to 256.
    """

    def by_slice(image: jax.Array, top: jax.Array, left: jax.Array, mirror: jax.Array) -> jax.Array:
        window = jax.lax.dynamic_slice(image, (top, left, 0), (height, width, image.shape[2]))
        return jnp.where(mirror, window[:, ::-1], window).astype(jnp.float32)

    def by_product(image: jax.Array, top: jax.Array, left: jax.Array, mirror: jax.Array) -> jax.Array:
        columns = jnp.arange(width)
        rows = top + jnp.arange(height)
        columns = left + jnp.where(mirror, columns[::-1], columns)
        pick_rows, pick_columns = (
            (wanted[:, None] == jnp.arange(size)).astype(jnp.bfloat16)
            for wanted, size in zip((rows, columns), image.shape)
        )
        window = jnp.einsum("ih,hwc->iwc", pick_rows, image.astype(jnp.bfloat16))
        return jnp.einsum("jw,iwc->ijc", pick_columns, window).astype(jnp.float32)

    return jax.lax.platform_dependent(image, top, left, mirror, tpu=by_product, default=by_slice)


def _coin(key: jax.Array, tossed: bool) -> jax.Array:
    return jax.random.bernoulli(key) if tossed else jnp.zeros((), bool)


@dataclasses.dataclass(frozen=True)
class CropFlip:
    """Photographs as encoders trained elsewhere expect them: a square window, standardized as for ImageNet.

    In training the window's place is random, and with `flip` every other window is mirrored; in tests it is the middle.
    """

    crop: int
    flip: bool

    def train(self, key: jax.Array, image: jax.Array) -> jax.Array:
        """Key, uint8 [H, W, 3] -> float32 [crop, crop, 3]."""
        place_key, flip_key = jax.random.split(key)
        room = jnp.array(image.shape[:2]) - self.crop
        top, left = jax.random.randint(place_key, (2,), 0, room + 1)
        return _standardize(_cut(image, top, left, _coin(flip_key, self.flip), self.crop, self.crop))

    def test(self, image: jax.Array) -> jax.Array:
        """uint8 [H, W, 3] -> float32 [crop, crop, 3]."""
        top, left = ((size - self.crop) // 2 for size in image.shape[:2])
        return _standardize(image[top : top + self.crop, left : left + self.crop])


def crop_and_flip(image_size: int, crop: int, flip: bool) -> Transform:
    """For pictures that are stored with image_size pixels a side."""
    for option, number in (("image_size", image_size), ("crop", crop)):
        check_at_least(option, number, 1)
    if crop > image_size:
        raise UserError(
            f"data.crop is {crop}, more than data.image_size, {image_size}; lower the one or raise the other"
        )
    window = CropFlip(crop, flip)
    return Transform(window.train, window.test)


def _standardize(image: jax.Array) -> jax.Array:
    return (image - 255 * np.array(IMAGENET_MEAN, np.float32)) / (255 * np.array(IMAGENET_STD, np.float32))


@dataclasses.dataclass(frozen=True)
class ShiftFlip:
    """Small pictures: pixels in [-1, 1], in training shifted by up to so many pixels (what moves in is black), and with
    `flip` every other one mirrored.
    """

    shift: int
    flip: bool

    def train(self, key: jax.Array, image: jax.Array) -> jax.Array:
        """Key, uint8 [H, W, C] -> float32 [H, W, C]."""
        height, width, _ = image.shape
        place_key, flip_key = jax.random.split(key)
        padded = jnp.pad(image, ((self.shift, self.shift), (self.shift, self.shift), (0, 0)))
        top, left = jax.random.randint(place_key, (2,), 0, 2 * self.shift + 1)
        return _cut(padded, top, left, _coin(flip_key, self.flip), height, width) / 127.5 - 1.0

    def test(self, image: jax.Array) -> jax.Array:
        return pixels(image)


def pixels(images: jax.Array) -> jax.Array:
    """uint8 -> float32 in [-1, 1]; ready-made float features pass through."""
    return images / 127.5 - 1.0 if images.dtype == jnp.uint8 else images


def jittered(jitter: Jitter) -> Transform:
    """Pixels in [-1, 1], shaken in training."""
    return Transform(train=lambda key, image: jitter(key, pixels(image)), test=pixels)


UNCHANGED = Transform(train=lambda key, image: pixels(image), test=pixels)
