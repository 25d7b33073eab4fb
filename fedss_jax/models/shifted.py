"""Depthwise convolution as shifted multiply-adds, which XLA makes one loop of, with a gradient to match.

The gradient that JAX derives is right but slow on CPUs, so it is written out. All sums are float32.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import jax
import jax.numpy as jnp

from fedss_jax.models.windows import Padding, every, num_windows, pad

BLOCK = 8  # rows that the weight gradient adds up before anything goes to memory


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def depthwise(x: jax.Array, weights: jax.Array, stride: int, padding: Padding) -> jax.Array:
    """x [B, H, W, C], weights [k, k, C] with k >= stride -> [B, H', W', C]."""
    kernel = len(weights)
    height, width = num_windows(x.shape, kernel, stride, padding)
    padded = pad(x, padding).astype(jnp.float32)
    return total(
        padded[:, every(i, stride, height), every(j, stride, width)] * weights[i, j]
        for i in range(kernel)
        for j in range(kernel)
    ).astype(x.dtype)


def total(terms: Iterable[jax.Array]) -> jax.Array:
    return functools.reduce(jnp.add, terms)


Saved = tuple[jax.Array, jax.Array]


def forward(x: jax.Array, weights: jax.Array, stride: int, padding: Padding) -> tuple[jax.Array, Saved]:
    return depthwise(x, weights, stride, padding), (x, weights)


def backward(stride: int, padding: Padding, saved: Saved, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, weights = saved
    dy = dy.astype(jnp.float32)
    dx = input_gradient(dy, weights, stride, padding, x.shape)
    dw = weight_gradient(x.astype(jnp.float32), dy, len(weights), stride, padding)
    return dx.astype(x.dtype), dw.astype(weights.dtype)


depthwise.defvjp(forward, backward)


def input_gradient(
    dy: jax.Array, weights: jax.Array, stride: int, padding: Padding, shape: tuple[int, ...]
) -> jax.Array:
    """dy [B, H', W', C] -> dx of the given shape [B, H, W, C], again as shifted multiply-adds.

    Pixels a stride apart meet the same weights: each such phase of x is one sum, and the phases are interleaved.
    """
    kernel = len(weights)
    phase_size = [-(-size // stride) for size in shape[1:3]]
    height, width = phase_size
    # A pixel y is at place i of window (y + before - i) / stride. Zeros stand in for windows that do not exist.
    margins = [
        (max((kernel - 2 - before + stride) // stride, 0), max((before + stride - 1) // stride + size - windows, 0))
        for (before, _), size, windows in zip(padding, phase_size, dy.shape[1:3], strict=True)
    ]
    dy = pad(dy, (margins[0], margins[1]))

    def places(axis: int, phase: int) -> Iterator[tuple[int, int]]:
        """The i that pixels of a phase can have, and where in dy the window of the phase's first pixel then is."""
        reach = phase + padding[axis][0]
        for i in range(reach % stride, kernel, stride):
            yield i, (reach - i) // stride + margins[axis][0]

    def phase(row: int, column: int) -> jax.Array:
        return total(
            dy[:, a : a + height, b : b + width] * weights[i, j]
            for i, a in places(0, row)
            for j, b in places(1, column)
        )

    rows = [jnp.stack([phase(row, column) for column in range(stride)], axis=3) for row in range(stride)]
    dx = jnp.stack(rows, axis=2).reshape(shape[0], height * stride, width * stride, shape[3])
    return dx[:, : shape[1], : shape[2]]


def weight_gradient(x: jax.Array, dy: jax.Array, kernel: int, stride: int, padding: Padding) -> jax.Array:
    """x [B, H, W, C], dy [B, H', W', C] -> dw [k, k, C].

    On CPUs XLA does not fuse a product into a sum over leading axes: k * k products as large as dy would go through
    memory, and take most of a network's time. Adding up BLOCK rows inside the product's own loop, and doing a row of
    the kernel in one loop, leaves little of that.
    """
    _, height, width, _ = dy.shape
    block = min(BLOCK, height)
    blocks = -(-height // block)
    rows = blocks * block  # with rows of zeros that fill up the last block
    (top, _), sides = padding
    dy = pad(dy, ((0, rows - height), (0, 0)))
    x = pad(x, ((top, max((rows - 1) * stride + kernel - top - x.shape[1], 0)), sides))

    def products(i: int, j: int) -> jax.Array:
        """[B, blocks, W', C]"""
        return total(
            x[:, every(i + row * stride, block * stride, blocks), every(j, stride, width)] * dy[:, row::block]
            for row in range(block)
        )

    by_row = [jnp.stack([products(i, j) for j in range(kernel)], axis=3) for i in range(kernel)]
    return jnp.stack([jnp.sum(row, axis=(0, 1, 2)) for row in by_row])
