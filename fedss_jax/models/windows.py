"""Sliding windows over images as slices: where they are, and all of them side by side."""

from __future__ import annotations

import jax
import jax.numpy as jnp

Padding = tuple[tuple[int, int], tuple[int, int]]  # (before, after) of height and of width


def same_padding(shape: tuple[int, ...], kernel: int, stride: int) -> Padding:
    """TensorFlow's for images [B, H, W, C]: ceil(H / stride) windows, and the odd row of zeros at the end."""
    margins = [max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in shape[1:3]]
    top, left = (margin // 2 for margin in margins)
    return (top, margins[0] - top), (left, margins[1] - left)


def symmetric_padding(kernel: int) -> Padding:
    """PyTorch's: half a kernel on every side."""
    return (kernel // 2, kernel // 2), (kernel // 2, kernel // 2)


def pad(x: jax.Array, padding: Padding) -> jax.Array:
    """[B, H, W, C] with zeros around each image."""
    return jnp.pad(x, [(0, 0), *padding, (0, 0)])


def num_windows(shape: tuple[int, ...], kernel: int, stride: int, padding: Padding) -> tuple[int, int]:
    """How many windows fit below and beside one another in padded images [B, H, W, C]."""
    height, width = ((n + sum(p) - kernel) // stride + 1 for n, p in zip(shape[1:3], padding, strict=True))
    return height, width


def every(start: int, stride: int, count: int) -> slice:
    """`count` places from `start`, a stride apart."""
    return slice(start, start + (count - 1) * stride + 1, stride)


def space_to_depth(x: jax.Array, block: int) -> jax.Array:
    """[B, H, W, C] -> [B, H / block, W / block, block * block * C]."""
    b, h, w, c = x.shape
    x = x.reshape(b, h // block, block, w // block, block, c)
    return x.swapaxes(2, 3).reshape(b, h // block, w // block, block * block * c)


def folds(shape: tuple[int, ...], kernel: int, stride: int, padding: Padding) -> bool:
    """Whether windows overlap by whole strides: then the stride folds into channels, and few slices remain."""
    return kernel % stride == 0 and all((n + sum(p)) % stride == 0 for n, p in zip(shape[1:3], padding, strict=True))


def patches(x: jax.Array, kernel: int, stride: int, padding: Padding) -> jax.Array:
    """Every window of x [B, H, W, C] as a row: [B, H', W', k * k * C], in row-major order unless the stride folds."""
    height, width = num_windows(x.shape, kernel, stride, padding)
    fold = folds(x.shape, kernel, stride, padding)
    x = pad(x, padding)
    if fold:
        x, kernel, stride = space_to_depth(x, stride), kernel // stride, 1
    slices = [x[:, every(i, stride, height), every(j, stride, width)] for i in range(kernel) for j in range(kernel)]
    return jnp.concatenate(slices, axis=-1)
