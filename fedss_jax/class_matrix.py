"""W, the class matrix [n, d]: where it starts, which of its rows a client asks for, and how they come back."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedss_jax.losses import normalize

BLOCK = 16_384  # rows that are drawn at a time


def init(key: jax.Array, num_classes: int, dim: int, norm: float) -> jax.Array:
    """Random directions, all of one length.

    The length matters though logits are cosines: the gradient on a row goes with 1 / its length, so this is
    the learning rate of W relative to the encoder's.
    """
    return init_share(key, 0, num_classes, dim, norm)


def init_share(key: jax.Array, first: int | jax.Array, count: int, dim: int, norm: float) -> jax.Array:
    """Rows first .. first + count - 1 of W, [count, d]; the same whatever others there are.

    In blocks, as drawing takes some times the memory of what is drawn.
    """

    def draw(block: jax.Array, rows: jax.Array) -> jax.Array:
        block_key = jax.lax.cond(block == 0, lambda: key, lambda: jax.random.fold_in(key, block))
        drawn = norm * normalize(jax.random.normal(block_key, (BLOCK, dim)))
        place = block * BLOCK - first + jnp.arange(BLOCK)
        return rows.at[jnp.where(place < 0, count, place)].set(drawn, mode="drop")

    blocks = first // BLOCK, (first + count - 1) // BLOCK + 1
    return jax.lax.fori_loop(*blocks, draw, jnp.zeros((count, dim)))


class Sampled(NamedTuple):
    """A request for some classes S_k. Of one client, or [K, ...] of a cohort.

    Padding has a class that exists; what it gets is never used, and what comes back for it is zero.
    """

    classes: jax.Array  # [S]
    valid: jax.Array  # [S] bool; False for padding
    positive: jax.Array  # [S] bool; asked for by name, not drawn
    log_inclusion: jax.Array  # [S] log probability that the class was drawn; 0 where it is certain

    def is_target(self, labels: jax.Array) -> jax.Array:
        """Which of one client's classes is an example's own: labels [B] -> [B, S] bool."""
        return (labels[:, None] == self.classes) & self.positive

    def wanted(self, num_classes: int) -> Wanted:
        """What a cohort asks for, put together."""
        classes = jnp.where(self.valid, self.classes, num_classes).reshape(-1)
        size = min(len(classes), num_classes + 1)
        order = jnp.argsort(classes)
        ordered = classes[order]
        is_new = jnp.concatenate([jnp.zeros(1, bool), ordered[1:] != ordered[:-1]])
        rank = jnp.cumsum(is_new)
        place = jnp.zeros_like(rank).at[order].set(rank).reshape(self.classes.shape)
        return Wanted((num_classes + jnp.arange(size)).at[rank].set(ordered), place, self.valid)


class Wanted(NamedTuple):
    """The R different classes that a cohort asks for, and what K clients receive of them and bring back.

    Each client's rows are kept apart until all are in, and are then added up at once.
    """

    classes: jax.Array  # [R] ascending; those from n on are padding
    place: jax.Array  # [K, S] where among these a client's classes are
    valid: jax.Array  # [K, S] bool; False for what a client has not asked for

    def received(self, rows: jax.Array, client: jax.Array) -> jax.Array:
        """Of the rows [R, d], those of one client: [S, d]."""
        return rows[self.place[client]]

    def nothing(self, rows: jax.Array) -> jax.Array:
        """What nobody has handed in yet."""
        return jnp.zeros((*self.place.shape, rows.shape[1]), rows.dtype)

    def hand_in(self, handed_in: jax.Array, rows: jax.Array, client: jax.Array, done: jax.Array) -> jax.Array:
        """Rows [L, S, d] of the clients [L] that are done."""
        return handed_in.at[jnp.where(done, client, len(handed_in))].set(rows, mode="drop")

    def total(self, handed_in: jax.Array) -> jax.Array:
        """[R, d]"""
        return self._sum(self.valid[..., None] * handed_in)

    def weigh(self, weight: jax.Array) -> jax.Array:
        """Weights [K] of clients, added up for each class over those that asked for it: [R]."""
        return self._sum((self.valid * weight[:, None])[..., None])[:, 0]

    def _sum(self, rows: jax.Array) -> jax.Array:
        dim = rows.shape[-1]
        return jnp.zeros((len(self.classes), dim), rows.dtype).at[self.place.reshape(-1)].add(rows.reshape(-1, dim))


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Everything:
    """A request for all classes: the same for every client, so that none of it is stored for each."""

    num_classes: int

    @property
    def classes(self) -> jax.Array:
        return jnp.arange(self.num_classes)

    @property
    def valid(self) -> jax.Array:
        return jnp.ones(self.num_classes, bool)

    positive = valid

    @property
    def log_inclusion(self) -> jax.Array:
        return jnp.zeros(self.num_classes)

    def is_target(self, labels: jax.Array) -> jax.Array:
        return labels[:, None] == self.classes

    # What is asked of Wanted: here all rows are one block, which clients' changes are added to as they come.

    def wanted(self, num_classes: int) -> Everything:
        return self

    def received(self, rows: jax.Array, client: jax.Array) -> jax.Array:
        return rows

    def nothing(self, rows: jax.Array) -> jax.Array:
        return jnp.zeros_like(rows)

    def hand_in(self, handed_in: jax.Array, rows: jax.Array, client: jax.Array, done: jax.Array) -> jax.Array:
        return handed_in + jnp.sum(jnp.where(done[:, None, None], rows, 0.0), axis=0)

    def total(self, handed_in: jax.Array) -> jax.Array:
        return handed_in

    def weigh(self, weight: jax.Array) -> jax.Array:
        return jnp.sum(weight)[None]  # the same for all


Request = Sampled | Everything
