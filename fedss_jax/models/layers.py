"""Convolutions that stay fast when every client has weights of its own, and the one place that chooses their form.

Under vmap a convolution with per-client weights becomes a grouped convolution. XLA runs that many times slower on a
CPU than the same arithmetic as slices, products and sums ("sliced"), while a TPU has hardware for the convolution
itself ("native"). "auto" takes what suits the platform. (`jax.lax.platform_dependent` would choose later, but traces
every form: that took longer than compiling some.) Pointwise convolutions are matrix products everywhere.
"""

from __future__ import annotations

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype

from fedss_jax.models import shifted
from fedss_jax.models.windows import Padding, every, folds, patches, same_padding

# float32 is to mean float32 on every device; by default TPUs and GPUs round the factors of a product. It changes
# nothing for bfloat16.
PRECISION = "highest"
FORMS = ("auto", "native", "sliced", "mixed")
NHWC = ("NHWC", "HWIO", "NHWC")


def check_images(x: jax.Array, smallest: int = 1) -> None:
    if x.ndim != 4:
        raise ValueError(f"it takes images [B, H, W, C], not inputs {[*x.shape]}")
    if min(x.shape[1:3]) < smallest:
        raise ValueError(f"images must have at least {smallest} x {smallest} pixels, not {x.shape[1]} x {x.shape[2]}")


def best_form(platform: str) -> str:
    """What suits a platform. "mixed" is native but for depthwise convolutions: on CUDA the gradient of a grouped one is
    reported to be slow (github.com/jax-ml/jax/issues/13800).
    """
    return {"cpu": "sliced", "tpu": "native"}.get(platform, "mixed")


def check_form(form: str) -> str:
    if form not in FORMS:
        raise ValueError(f"convolution is {form!r}; choose one of {', '.join(FORMS)}")
    return best_form(jax.default_backend()) if form == "auto" else form


def product(x: jax.Array, weights: jax.Array) -> jax.Array:
    """x [..., C], weights [C, F] -> [..., F]."""
    return jax.lax.dot_general(x, weights, (((x.ndim - 1,), (0,)), ((), ())), precision=PRECISION)


def pointwise(x: jax.Array, weights: jax.Array) -> jax.Array:
    """A 1 x 1 convolution: x [B, H, W, C], weights [C, F] -> [B, H, W, F]."""
    # Of matrices, not of images: for its gradient XLA would make a transposed copy of those.
    return product(x.reshape(-1, x.shape[-1]), weights).reshape(*x.shape[:-1], weights.shape[-1])


def dense(x: jax.Array, weights: jax.Array, kernel: int, stride: int, padding: Padding, form: str) -> jax.Array:
    """x [B, H, W, C], weights [k * k * C, F] in the order of `patches` -> [B, H', W', F]."""
    fold = folds(x.shape, kernel, stride, padding)

    def sliced(x: jax.Array, weights: jax.Array) -> jax.Array:
        return product(patches(x, kernel, stride, padding), weights)

    def native(x: jax.Array, weights: jax.Array) -> jax.Array:
        channels, features = x.shape[-1], weights.shape[-1]
        if fold:  # the weights of folded strides, back in row-major order
            k = kernel // stride
            weights = weights.reshape(k, k, stride, stride, channels, features).transpose(0, 2, 1, 3, 4, 5)
        weights = weights.reshape(kernel, kernel, channels, features)
        return jax.lax.conv_general_dilated(
            x, weights, (stride, stride), padding, dimension_numbers=NHWC, precision=PRECISION
        )

    return (sliced if check_form(form) == "sliced" else native)(x, weights)


def depthwise(x: jax.Array, weights: jax.Array, stride: int, padding: Padding, form: str) -> jax.Array:
    """Each channel with a filter of its own: x [B, H, W, C], weights [k, k, C] -> [B, H', W', C]."""

    def sliced(x: jax.Array, weights: jax.Array) -> jax.Array:
        return shifted.depthwise(x, weights, stride, padding)

    def native(x: jax.Array, weights: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            x,
            weights[:, :, None],
            (stride, stride),
            padding,
            dimension_numbers=NHWC,
            feature_group_count=x.shape[-1],
            precision=PRECISION,
        )

    return (native if check_form(form) == "native" else sliced)(x, weights)


def max_pool(x: jax.Array, size: int) -> jax.Array:
    """The largest of every size x size pixels: [B, H, W, C] -> [B, H / size, W / size, C]. Odd margins are left out.

    A maximum of slices: on CPUs the gradient of XLA's own pooling is slow.
    """
    height, width = (x.shape[axis] // size for axis in (1, 2))
    slices = [x[:, every(i, size, height), every(j, size, width)] for i in range(size) for j in range(size)]
    return functools.reduce(jnp.maximum, slices)


class Weights(nn.Module):
    """The kernel of an nn.Dense, without its product."""

    shape: tuple[int, ...]

    @nn.compact
    def __call__(self) -> jax.Array:
        return self.param("kernel", nn.initializers.lecun_normal(), self.shape)


class Conv(nn.Module):
    """A dense convolution with TensorFlow's "SAME" padding."""

    features: int
    kernel: int
    stride: int
    dtype: jnp.dtype
    form: str = "auto"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        weights = Weights((self.kernel * self.kernel * x.shape[-1], self.features), name="Dense_0")()
        x, weights = promote_dtype(x, weights, dtype=self.dtype)
        padding = same_padding(x.shape, self.kernel, self.stride)
        return dense(x, weights, self.kernel, self.stride, padding, self.form)


class GroupNorm(nn.Module):
    """Normalizes each image over its pixels and a group of channels, then scales and shifts each channel.

    As nn.GroupNorm, in two thirds of its time and half its memory: sums go by channel first, and the result is one
    multiply-add. Statistics are float32 whatever x [B, H, W, C] is.
    """

    groups: int
    dtype: jnp.dtype
    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        batch, height, width, channels = x.shape
        if self.groups < 1 or channels % self.groups:
            raise ValueError(f"groups is {self.groups}; it must divide all numbers of channels, and {channels} is one")
        scale = self.param("scale", nn.initializers.ones, (channels,))
        bias = self.param("bias", nn.initializers.zeros, (channels,))
        x = x.astype(jnp.float32)
        members = channels // self.groups

        def group_mean(x: jax.Array) -> jax.Array:
            """[B, H, W, C] -> [B, C]: the mean of a channel's group."""
            sums = jnp.sum(x, axis=(1, 2)).reshape(batch, self.groups, members).sum(axis=-1)
            return jnp.repeat(sums / (height * width * members), members, axis=-1)

        mean = group_mean(x)
        variance = jnp.maximum(group_mean(jnp.square(x)) - jnp.square(mean), 0.0)
        factor = scale * jax.lax.rsqrt(variance + self.epsilon)
        shift = bias - mean * factor
        return (x * factor[:, None, None] + shift[:, None, None]).astype(self.dtype)
