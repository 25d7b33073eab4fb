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
NESTED = 3  # kernels up to this size have their weight gradient in one loop, larger ones in one for each of their rows


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def depthwise(x: jax.Array, weights: jax.Array, stride: int, padding: Padding) -> jax.Array:
    """x [B, H, W, C], weights [k, k, C] with k >= stride -> [B, H', W', C]."""
    return forward(x, weights, stride, padding)[0]


def total(terms: Iterable[jax.Array]) -> jax.Array:
    return functools.reduce(jnp.add, terms)


def padded_once(x: jax.Array, padding: Padding) -> jax.Array:
    """For all that reads it. Without a barrier XLA takes what it can from x itself, and reads both, or pads again."""
    return jax.lax.optimization_barrier(pad(x, padding))


def in_blocks(rows: int) -> tuple[int, int]:
    """So many rows as blocks of equal size that hold them: how many of which size."""
    size = min(BLOCK, rows)
    return -(-rows // size), size


Saved = tuple[jax.Array, jax.Array, tuple[int, ...]]  # x with margins, weights, the shape of x


def forward(x: jax.Array, weights: jax.Array, stride: int, padding: Padding) -> tuple[jax.Array, Saved]:
    kernel = len(weights)
    height, width = num_windows(x.shape, kernel, stride, padding)
    blocks, size = in_blocks(height)
    (top, bottom), sides = padding
    # As many rows as the weight gradient will want, which goes by whole blocks.
    bottom = max(bottom, (blocks * size - 1) * stride + kernel - top - x.shape[1])
    margins = padded_once(x, ((top, bottom), sides))
    filtered = total(
        margins[:, every(i, stride, height), every(j, stride, width)].astype(jnp.float32) * weights[i, j]
        for i in range(kernel)
        for j in range(kernel)
    )
    return filtered.astype(x.dtype), (margins, weights, x.shape)


def backward(stride: int, padding: Padding, saved: Saved, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, weights, shape = saved
    kernel, windows = len(weights), dy.shape[1:3]
    phases = [-(-size // stride) for size in shape[1:3]]
    # A pixel y is at place i of window (y + before - i) / stride. Zeros stand in for windows that do not exist.
    (top, bottom), sides = (
        (max((kernel - 2 - before + stride) // stride, 0), max((before + stride - 1) // stride + size - count, 0))
        for (before, _), size, count in zip(padding, phases, windows, strict=True)
    )
    blocks, size = in_blocks(windows[0])
    margins = (top, max(bottom, blocks * size - windows[0])), sides
    dy = padded_once(dy.astype(jnp.float32), margins)
    dx = input_gradient(dy, weights, stride, padding, margins, shape)
    dw = weight_gradient(x, dy, kernel, stride, margins, windows)
    return dx.astype(x.dtype), dw.astype(weights.dtype)


depthwise.defvjp(forward, backward)


def input_gradient(
    dy: jax.Array, weights: jax.Array, stride: int, padding: Padding, margins: Padding, shape: tuple[int, ...]
) -> jax.Array:
    """dy [B, H', W', C] with margins -> dx of the given shape [B, H, W, C], again as shifted multiply-adds.

    Pixels a stride apart meet the same weights: each such phase of x is one sum, and the phases are interleaved.
    """
    kernel = len(weights)
    height, width = (-(-size // stride) for size in shape[1:3])

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


def weight_gradient(
    x: jax.Array, dy: jax.Array, kernel: int, stride: int, margins: Padding, windows: tuple[int, ...]
) -> jax.Array:
    """x [B, H, W, C] and dy [B, H', W', C], both with margins, of so many windows (H', W') -> dw [k, k, C].

    On CPUs XLA does not fuse a product into a sum over leading axes: k * k products as large as dy would go through
    memory, and take most of a network's time. Adding up BLOCK rows inside the product's own loop, and doing many places
    of the kernel in one loop, leaves little of that.
    """
    height, width = windows
    blocks, size = in_blocks(height)
    (top, _), (left, _) = margins

    def products(i: int, j: int) -> jax.Array:
        """[B, blocks, W', C]"""
        return total(
            x[:, every(i + row * stride, size * stride, blocks), every(j, stride, width)].astype(jnp.float32)
            * dy[:, every(top + row, size, blocks), left : left + width]
            for row in range(size)
        )

    by_row = [jnp.stack([products(i, j) for j in range(kernel)], axis=3) for i in range(kernel)]
    if kernel <= NESTED:
        return jnp.sum(jnp.stack(by_row, axis=3), axis=(0, 1, 2))
    return jnp.stack([jnp.sum(row, axis=(0, 1, 2)) for row in by_row])
