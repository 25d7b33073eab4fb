"""A number for all bits of a server's state: the same on any devices, and another if one bit is."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from fedss_jax.rows import Layout
from fedss_jax.types import ServerState


def digest(layout: Layout, state: ServerState) -> str:
    """16 hex digits. Rows that only fill up the devices' shares do not count."""
    first, second = jax.device_get(_sums(layout, state))
    return f"{int(first):08x}{int(second):08x}"


@partial(jax.jit, static_argnums=0)
def _sums(layout: Layout, state: ServerState) -> tuple[jax.Array, jax.Array]:
    """Sums of integers modulo 2^32, whose order does not matter; two, as 32 bits would be alike too often."""
    of_rows = jax.tree.leaves(state.rows)
    by_row = [array for array in of_rows if layout.is_by_row(array)]
    others = [*jax.tree.leaves(state._replace(rows=())), *(array for array in of_rows if not layout.is_by_row(array))]
    # As one array, for a large encoder has hundreds of them, and a program for each takes seconds to compile.
    together = jnp.concatenate([_bits(array).ravel() for array in others])
    first = second = jnp.zeros((), jnp.uint32)
    for number, bits in enumerate([together, *map(_bits, by_row)]):
        mixed = _mix(bits ^ _mix(_places(bits) + jnp.uint32(number * 0x9E3779B1 % 2**32)))
        if number:
            counts = jax.lax.broadcasted_iota(jnp.int32, bits.shape, 0) < layout.num_classes
            mixed = jnp.where(counts, mixed, 0)
        first, second = first + jnp.sum(mixed), second + jnp.sum(mixed * (mixed >> 15))
    return first, second


def _bits(array: jax.Array) -> jax.Array:
    """As uint32, entry by entry."""
    if array.dtype == bool:
        return array.astype(jnp.uint32)
    kinds = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}
    return jax.lax.bitcast_convert_type(array, kinds[array.dtype.itemsize]).astype(jnp.uint32)


def _places(array: jax.Array) -> jax.Array:
    """Each entry's number, which does not depend on how many rows there are."""
    place, stride = jnp.zeros(array.shape, jnp.uint32), 1
    for axis in reversed(range(array.ndim)):
        place += jax.lax.broadcasted_iota(jnp.uint32, array.shape, axis) * jnp.uint32(stride % 2**32)
        stride *= array.shape[axis]
    return place


def _mix(x: jax.Array) -> jax.Array:
    """The end of MurmurHash3: of each bit that goes in depends every bit that comes out."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
