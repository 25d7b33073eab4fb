"""MobileNetV3 Large and Small (arXiv 1905.02244) with GroupNorm in the place of BatchNorm.

Layer for layer torchvision's, padding included, so that its weights can be loaded (weights.py). GroupNorm, as a
client's batches are too few and too unlike those of others for BatchNorm's statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype

from fedss_jax.models import layers
from fedss_jax.models.windows import symmetric_padding

SMALLEST = 32  # pixels: below, the last stride has nothing left to halve


class Block(NamedTuple):
    """An inverted residual."""

    kernel: int
    expanded: int
    out: int
    squeeze: bool
    activation: Callable[[jax.Array], jax.Array]
    stride: int


RE, HS = nn.relu, nn.hard_swish
LARGE = (
    Block(3, 16, 16, False, RE, 1),
    Block(3, 64, 24, False, RE, 2),
    Block(3, 72, 24, False, RE, 1),
    Block(5, 72, 40, True, RE, 2),
    Block(5, 120, 40, True, RE, 1),
    Block(5, 120, 40, True, RE, 1),
    Block(3, 240, 80, False, HS, 2),
    Block(3, 200, 80, False, HS, 1),
    Block(3, 184, 80, False, HS, 1),
    Block(3, 184, 80, False, HS, 1),
    Block(3, 480, 112, True, HS, 1),
    Block(3, 672, 112, True, HS, 1),
    Block(5, 672, 160, True, HS, 2),
    Block(5, 960, 160, True, HS, 1),
    Block(5, 960, 160, True, HS, 1),
)
SMALL = (
    Block(3, 16, 16, True, RE, 2),
    Block(3, 72, 24, False, RE, 2),
    Block(3, 88, 24, False, RE, 1),
    Block(5, 96, 40, True, HS, 2),
    Block(5, 240, 40, True, HS, 1),
    Block(5, 240, 40, True, HS, 1),
    Block(5, 120, 48, True, HS, 1),
    Block(5, 144, 48, True, HS, 1),
    Block(5, 288, 96, True, HS, 2),
    Block(5, 576, 96, True, HS, 1),
    Block(5, 576, 96, True, HS, 1),
)


def make_divisible(channels: float, by: int = 8) -> int:
    """The nearest multiple, but never below nine tenths of what was asked for."""
    rounded = max(by, int(channels + by / 2) // by * by)
    return rounded + by if rounded < 0.9 * channels else rounded


class Style(NamedTuple):
    """What all layers of a network share."""

    groups: int
    form: layers.Form
    dtype: jnp.dtype


class ConvNorm(nn.Module):
    """A convolution without bias and GroupNorm: [B, H, W, C] -> [B, H / stride, W / stride, features]."""

    style: Style
    features: int
    kernel: int = 1
    stride: int = 1
    depthwise: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        k, form = self.kernel, self.style.form
        shape = (k, k, self.features) if self.depthwise else (k * k * x.shape[-1], self.features)
        weights = self.param("kernel", nn.initializers.lecun_normal(), shape)
        x, weights = promote_dtype(x, weights, dtype=self.style.dtype)
        if self.depthwise:
            x = form.depthwise(x, weights, self.stride, symmetric_padding(k))
        elif k == 1:
            x = form.pointwise(x, weights)
        else:
            x = form.dense(x, weights, k, self.stride, symmetric_padding(k))
        return layers.GroupNorm(self.style.groups, self.style.dtype, name="norm")(x)


class SqueezeExcite(nn.Module):
    """Channels of x [B, H, W, C] weighed by what the whole image has in them."""

    style: Style
    features: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        _, form, dtype = self.style
        weights = jnp.mean(x, axis=(1, 2))
        weights = nn.relu(layers.dense(self.features, form, dtype, name="fc1")(weights))
        weights = layers.dense(x.shape[-1], form, dtype, name="fc2")(weights)
        return x * nn.hard_sigmoid(weights)[:, None, None]


class InvertedResidual(nn.Module):
    """Expand, filter each channel, project back: [B, H, W, C] -> [B, H / stride, W / stride, out]."""

    style: Style
    block: Block

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel, expanded, out, squeeze, activation, stride = self.block
        inputs = x
        if expanded != x.shape[-1]:
            x = activation(ConvNorm(self.style, expanded, name="expand")(x))
        x = activation(ConvNorm(self.style, expanded, kernel, stride, depthwise=True, name="depthwise")(x))
        if squeeze:
            x = SqueezeExcite(self.style, make_divisible(expanded // 4), name="squeeze")(x)
        x = ConvNorm(self.style, out, name="project")(x)
        return x + inputs if stride == 1 and out == inputs.shape[-1] else x


class MobileNetV3(nn.Module):
    """Images [B, H, W, C] of any size from 32 x 32 -> [B, dim].

    `width` multiplies the number of channels. `hidden` puts a layer between the pooled features and the embedding;
    the classifiers of the paper have 1280 (Large) and 1024 (Small) there. `depth` takes only the first so many blocks,
    for a quick try. `remat` keeps only each block's input for the gradient and works the rest out again: less memory, a
    third more time.
    """

    blocks: tuple[Block, ...]
    dim: int
    dtype: jnp.dtype = jnp.float32
    width: float = 1.0
    groups: int = 8
    hidden: int = 0
    depth: int = 0
    remat: bool = False
    convolution: str = "auto"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        layers.check_images(x, SMALLEST)
        if not self.width > 0:
            raise ValueError(f"width is {self.width}; it must be above 0")
        if not 0 <= self.depth <= len(self.blocks):
            raise ValueError(f"depth is {self.depth}; there are {len(self.blocks)} blocks, and 0 stands for all")
        if self.hidden < 0:
            raise ValueError(f"hidden is {self.hidden}; it must be 0 (no such layer) or more")
        style = Style(self.groups, layers.form_of(self.convolution), self.dtype)
        x = nn.hard_swish(ConvNorm(style, make_divisible(16 * self.width), 3, 2, name="stem")(x))
        residual = nn.remat(InvertedResidual) if self.remat else InvertedResidual
        for number, block in enumerate(self.blocks[: self.depth or None], 1):
            expanded, out = (make_divisible(channels * self.width) for channels in (block.expanded, block.out))
            block = block._replace(expanded=expanded, out=out)
            x = residual(style, block, name=f"block_{number}")(x)
        x = nn.hard_swish(ConvNorm(style, 6 * x.shape[-1], name="last")(x))
        x = jnp.mean(x, axis=(1, 2))
        if self.hidden:
            x = nn.hard_swish(layers.dense(self.hidden, style.form, self.dtype, name="hidden")(x))
        return layers.dense(self.dim, style.form, self.dtype, name="head")(x)
