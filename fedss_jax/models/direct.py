"""Dense convolution without strides by the library that XLA has for CPUs, with a gradient to match.

The library takes one kind of convolution only: no padding, no dilation, axes in one order. All others XLA writes out
as loops, twenty times slower, and so it does with the gradient that JAX derives and with the grouped convolution that
vmap makes of weights that clients have of their own. Here each of them is written in terms of that one kind.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from fedss_jax.models.windows import Padding, pad

NHWC = ("NHWC", "HWIO", "NHWC")


@jax.custom_batching.custom_vmap
def valid(x: jax.Array, weights: jax.Array) -> jax.Array:
    """x [B, H, W, C], weights [k, l, C, F] -> [B, H - k + 1, W - l + 1, F]."""
    return jax.lax.conv_general_dilated(x, weights, (1, 1), "VALID", dimension_numbers=NHWC, precision="highest")


@valid.def_vmap
def one_by_one(clients: int, has_own: list[bool], x: jax.Array, weights: jax.Array) -> tuple[jax.Array, bool]:
    """One convolution for each client; or one for all, if they share the weights."""
    x_is_own, weights_are_own = has_own
    if not weights_are_own:
        together = valid(x.reshape(-1, *x.shape[2:]), weights)
        return together.reshape(*x.shape[:2], *together.shape[1:]), True
    each = [valid(x[client] if x_is_own else x, weights[client]) for client in range(clients)]
    return jnp.stack(each), True


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def dense(x: jax.Array, weights: jax.Array, padding: Padding) -> jax.Array:
    """x [B, H, W, C], weights [k, l, C, F] -> [B, H', W', F]."""
    return valid(pad(x, padding), weights)


Saved = tuple[jax.Array, jax.Array]


def forward(x: jax.Array, weights: jax.Array, padding: Padding) -> tuple[jax.Array, Saved]:
    return dense(x, weights, padding), (x, weights)


def backward(padding: Padding, saved: Saved, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, weights = saved
    margins = [(size - 1, size - 1) for size in weights.shape[:2]]
    dx = valid(pad(dy, (margins[0], margins[1])), weights[::-1, ::-1].swapaxes(2, 3))
    (top, _), (left, _) = padding
    dx = dx[:, top : top + x.shape[1], left : left + x.shape[2]]
    # dy slides over x, and gives a pixel for each place in the kernel; images are summed over, as channels elsewhere.
    dw = valid(pad(x, padding).transpose(3, 1, 2, 0), dy.transpose(1, 2, 0, 3)).transpose(1, 2, 0, 3)
    return dx, dw


dense.defvjp(forward, backward)
