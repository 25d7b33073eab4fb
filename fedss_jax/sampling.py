"""Who takes part in a round, and which negatives a client draws. All on the device, at a cost free of n.

Keys follow identity, not position: everything a client draws comes from `client_key(root, round, client_id)`,
and element i of a drawn array depends on i alone. So results do not change with the number of devices, with
padding, or with the order in which clients are computed.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp


def client_key(root: jax.Array, round: jax.Array, client_id: jax.Array) -> jax.Array:
    return jax.random.fold_in(jax.random.fold_in(root, round), client_id)


def _bits(key: jax.Array, count: int) -> jax.Array:
    """uint32 [count, 2]; row i depends on the key and on i, not on count."""
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(count))
    return jax.vmap(lambda k: jax.random.bits(k, (2,), jnp.uint32))(keys)


def _below(bits: jax.Array, limit: jax.Array) -> jax.Array:
    """64 random bits [..., 2] -> an integer in [0, limit), for limits up to 2**31.

    The 64-bit number modulo the limit, worked out in 32-bit steps (JAX has no 64-bit integers by default): the
    remainder of the high word is brought down one bit at a time. No value is favoured by more than 2**-33.
    """
    limit = limit.astype(jnp.uint32)
    high, low = bits[..., 0] % limit, bits[..., 1]

    def bring_down(i: jax.Array, rest: jax.Array) -> jax.Array:
        # rest < limit <= 2**31, so doubling does not overflow.
        bit = (low >> (31 - i).astype(jnp.uint32)) & jnp.uint32(1)
        return (rest * jnp.uint32(2) + bit) % limit

    return jax.lax.fori_loop(0, 32, bring_down, high).astype(jnp.int32)


def distinct(key: jax.Array, population: jax.Array, count: jax.Array, max_count: int) -> jax.Array:
    """A uniformly drawn set of `count` distinct integers of [0, population), in an array [max_count].

    Entries past `count` are padding. Time and memory follow max_count and not the population.

    Robert Floyd's method: draw t_i from [0, j_i], j_i = population - count + i, and take t_i, or j_i if t_i is
    taken already. It looks sequential, but t_i is taken exactly if an earlier draw has the same value, or if
    t_i is some earlier j_p and draw p had to fall back to its j_p. The second is a chain of pointers i -> p,
    which doubling resolves in log2(count) steps for all i at once.
    """
    if max_count == 0:
        return jnp.zeros((0,), jnp.int32)
    index = jnp.arange(max_count)
    base = population - count
    in_use = index < count
    fallback = base + index
    draw = _below(_bits(key, max_count), jnp.maximum(fallback + 1, 1))
    draw = jnp.where(in_use, draw, population + index)  # padding repeats nobody's draw

    order = jnp.argsort(draw, stable=True)
    ordered = draw[order]
    repeats = jnp.concatenate([jnp.zeros(1, bool), ordered[1:] == ordered[:-1]])
    taken = jnp.zeros(max_count, bool).at[order].set(repeats)

    parent = draw - base
    parent = jnp.where((parent >= 0) & (parent < index), parent, index)  # no earlier j: points at itself
    for _ in range(math.ceil(math.log2(max_count))):
        taken = taken | taken[parent]
        parent = parent[parent]
    return jnp.where(taken, fallback, draw)


def negatives(
    key: jax.Array,
    positives: jax.Array,
    num_positives: jax.Array,
    num_classes: int,
    count: jax.Array,
    max_count: int,
) -> jax.Array:
    """`count` classes drawn uniformly without replacement from [n] minus the positives. int32 [max_count].

    positives: [P], ascending, entries past num_positives are n. Entries of the result past `count` are padding.
    """
    rank = distinct(key, num_classes - num_positives, count, max_count)
    # The r-th class that is not positive is r plus the number of positives below it; before positive i there are
    # positives[i] - i classes that are not.
    others_before = positives - jnp.arange(positives.shape[0])
    is_positive = jnp.arange(positives.shape[0]) < num_positives
    others_before = jnp.where(is_positive, others_before, num_classes)
    return (rank + jnp.searchsorted(others_before, rank, side="right")).astype(jnp.int32)


def cohort(key: jax.Array, population: int, clients_per_round: int) -> jax.Array:
    """K clients of the population without replacement. int32 [K], ascending."""
    size = jnp.asarray(population), jnp.asarray(clients_per_round)
    return jnp.sort(distinct(key, *size, clients_per_round))


def shuffled(key: jax.Array, count: jax.Array, max_count: int) -> jax.Array:
    """A random order of range(count), then padding. int32 [max_count]."""
    ticket = _bits(key, max_count)[:, 0]
    # Sorted by (is padding, ticket): real positions come first, in the order of their tickets.
    is_padding = jnp.arange(max_count) >= count
    return jnp.lexsort((ticket, is_padding)).astype(jnp.int32)
