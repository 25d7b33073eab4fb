"""Convolutions that stay fast when every client has weights of its own, and the one place that chooses their form.

Under vmap a convolution with per-client weights becomes a grouped convolution. XLA runs that many times slower on a
CPU than the same arithmetic as slices, products and sums, while a TPU has hardware for the convolution itself. So each
kind of platform has a form of its own. (`jax.lax.platform_dependent` would choose later, but traces every form: that
took longer than compiling some.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype

from fedss_jax.models import direct, shifted
from fedss_jax.models.direct import NHWC
from fedss_jax.models.windows import Padding, every, folds, patches, same_padding

# float32 is to mean float32 on every device; by default TPUs and GPUs round the factors of a product. It changes
# nothing for bfloat16.
PRECISION = "highest"
FEW_ROWS, FEW_CHANNELS = 16, 8


def check_images(x: jax.Array, smallest: int = 1) -> None:
    if x.ndim != 4:
        raise ValueError(f"it takes images [B, H, W, C], not inputs {[*x.shape]}")
    if min(x.shape[1:3]) < smallest:
        raise ValueError(f"images must have at least {smallest} x {smallest} pixels, not {x.shape[1]} x {x.shape[2]}")


def product(x: jax.Array, weights: jax.Array) -> jax.Array:
    """x [..., C], weights [C, F] -> [..., F]."""
    return contracted(x, weights, x.ndim - 1, 0)


def contracted(a: jax.Array, b: jax.Array, axis_of_a: int, axis_of_b: int) -> jax.Array:
    return jax.lax.dot_general(a, b, (((axis_of_a,), (axis_of_b,)), ((), ())), precision=PRECISION)


def product_of_matrices(x: jax.Array, weights: jax.Array) -> jax.Array:
    """The same, for XLA's CPU compiler: of images it would make a transposed copy for the gradient."""
    rows = x.reshape(-1, x.shape[-1])
    multiply = thin_product if len(rows) <= FEW_ROWS else upright_product
    return multiply(rows, weights).reshape(*x.shape[:-1], weights.shape[-1])


Factors = tuple[jax.Array, jax.Array]


@jax.custom_vjp
def upright_product(x: jax.Array, weights: jax.Array) -> jax.Array:
    """Of matrices. JAX's own gradient of the weights comes out transposed under vmap, and adding it to anything then
    reads it across its rows.
    """
    return product(x, weights)


def upright_backward(saved: Factors, dy: jax.Array) -> Factors:
    x, weights = saved
    return contracted(dy, weights, 1, 1), contracted(x, dy, 0, 0)


upright_product.defvjp(lambda x, weights: (product(x, weights), (x, weights)), upright_backward)


@jax.custom_vjp
def thin_product(x: jax.Array, weights: jax.Array) -> jax.Array:
    """Of few rows. The gradient of the weights is a sum of outer products, as XLA makes of that and of the SGD step one
    pass over the weights, where a product of matrices would take three.
    """
    return product(x, weights)


def thin_backward(saved: Factors, dy: jax.Array) -> Factors:
    x, weights = saved
    outer = [jnp.outer(x[row], dy[row]) for row in range(len(x))]
    # Not `dy @ weights.T`: XLA would write the transposed weights out.
    return contracted(dy, weights, 1, 1), functools.reduce(jnp.add, outer)


thin_product.defvjp(lambda x, weights: (product(x, weights), (x, weights)), thin_backward)


def patches_product(x: jax.Array, weights: jax.Array, kernel: int, stride: int, padding: Padding) -> jax.Array:
    return product(patches(x, kernel, stride, padding), weights)


def native_dense(x: jax.Array, weights: jax.Array, kernel: int, stride: int, padding: Padding) -> jax.Array:
    weights = as_kernel(weights, kernel, stride, padding, x.shape)
    return jax.lax.conv_general_dilated(
        x, weights, (stride, stride), padding, dimension_numbers=NHWC, precision=PRECISION
    )


def direct_or_patches(x: jax.Array, weights: jax.Array, kernel: int, stride: int, padding: Padding) -> jax.Array:
    if kernel == 1 or stride > 1:
        return product_of_matrices(patches(x, kernel, stride, padding), weights)
    return direct.dense(x, as_kernel(weights, kernel, stride, padding, x.shape), padding)


def native_or_patches(x: jax.Array, weights: jax.Array, kernel: int, stride: int, padding: Padding) -> jax.Array:
    """Few channels would leave most of a TPU's vectors empty, once for each client, unless strides fold into them."""
    few = x.shape[-1] < FEW_CHANNELS and not folds(x.shape, kernel, stride, padding)
    return (patches_product if few else native_dense)(x, weights, kernel, stride, padding)


def as_kernel(weights: jax.Array, kernel: int, stride: int, padding: Padding, shape: tuple[int, ...]) -> jax.Array:
    """Weights [k * k * C, F] in the order of `patches` for images of this shape -> [k, k, C, F]."""
    channels, features = shape[-1], weights.shape[-1]
    if folds(shape, kernel, stride, padding):
        k = kernel // stride
        weights = weights.reshape(k, k, stride, stride, channels, features).transpose(0, 2, 1, 3, 4, 5)
    return weights.reshape(kernel, kernel, channels, features)


def native_depthwise(x: jax.Array, weights: jax.Array, stride: int, padding: Padding) -> jax.Array:
    return jax.lax.conv_general_dilated(
        x,
        weights[:, :, None],
        (stride, stride),
        padding,
        dimension_numbers=NHWC,
        feature_group_count=x.shape[-1],
        precision=PRECISION,
    )


class Form(NamedTuple):
    """How each kind of convolution of images [B, H, W, C] is written.

    dense(x, weights [k * k * C, F] in the order of `patches`, k, stride, padding) -> [B, H', W', F]
    depthwise(x, weights [k, k, C], stride, padding) -> [B, H', W', C]: each channel with a filter of its own
    pointwise(x, weights [C, F]) -> [B, H, W, F]: a 1 x 1 convolution
    """

    dense: Callable[[jax.Array, jax.Array, int, int, Padding], jax.Array]
    depthwise: Callable[[jax.Array, jax.Array, int, Padding], jax.Array]
    pointwise: Callable[[jax.Array, jax.Array], jax.Array]


FORMS = {
    "cpu": Form(direct_or_patches, shifted.depthwise, product_of_matrices),
    "tpu": Form(native_or_patches, native_depthwise, product),
    # On CUDA the gradient of a grouped convolution is reported to be slow (github.com/jax-ml/jax/issues/13800).
    "gpu": Form(native_dense, shifted.depthwise, product_of_matrices),
}


def best_form(platform: str) -> str:
    return platform if platform in FORMS else "gpu"


def form_of(convolution: str) -> Form:
    """By the name of what it suits; "auto" stands for the platform on which JAX runs here."""
    if convolution == "auto":
        convolution = best_form(jax.default_backend())
    if convolution not in FORMS:
        raise ValueError(f"convolution is {convolution!r}; choose one of auto, {', '.join(FORMS)}")
    return FORMS[convolution]


def max_pool(x: jax.Array, size: int) -> jax.Array:
    """The largest of every size x size pixels: [B, H, W, C] -> [B, H / size, W / size, C]. Odd margins are left out.

    A maximum of slices: on CPUs the gradient of XLA's own pooling is slow.
    """
    height, width = (x.shape[axis] // size for axis in (1, 2))
    slices = [x[:, every(i, size, height), every(j, size, width)] for i in range(size) for j in range(size)]
    return functools.reduce(jnp.maximum, slices)


def dense(features: int, form: Form, dtype: jnp.dtype, name: str) -> nn.Dense:
    """Its product is a 1 x 1 convolution of one pixel."""

    def dot_general(x: jax.Array, weights: jax.Array, *_: Any, **__: Any) -> jax.Array:
        return form.pointwise(x, weights)

    return nn.Dense(features, dtype=dtype, dot_general=dot_general, name=name)


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
    form: Form

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        weights = Weights((self.kernel * self.kernel * x.shape[-1], self.features), name="Dense_0")()
        x, weights = promote_dtype(x, weights, dtype=self.dtype)
        padding = same_padding(x.shape, self.kernel, self.stride)
        return self.form.dense(x, weights, self.kernel, self.stride, padding)


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
        # Behind a barrier, as else, for the gradients of scale and bias, XLA goes once more through all pixels.
        factor, shift = jax.lax.optimization_barrier((factor, bias - mean * factor))
        return (x * factor[:, None, None] + shift[:, None, None]).astype(self.dtype)
