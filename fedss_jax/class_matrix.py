"""W, the class matrix [n, d]: where it starts, which of its rows a client asks for, and how they come back."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedss_jax.losses import normalize


def init(key: jax.Array, num_classes: int, dim: int, norm: float) -> jax.Array:
    """Random directions, all of one length.

    The length matters though logits are cosines: the gradient on a row goes with 1 / its length, so this is
    the learning rate of W relative to the encoder's.
    """
    return norm * normalize(jax.random.normal(key, (num_classes, dim)))


def scatter_add(num_classes: int, classes: jax.Array, rows: jax.Array) -> jax.Array:
    """Sum of rows [..., d] by their class [...], as a dense [n, d]; padding must bring zeros."""
    dense = jnp.zeros((num_classes, rows.shape[-1]), rows.dtype)
    return dense.at[classes.reshape(-1)].add(rows.reshape(-1, rows.shape[-1]))


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

    def rows(self, class_matrix: jax.Array) -> jax.Array:
        """What one client receives: [S, d]."""
        return class_matrix[self.classes]

    # A cohort's requests. Each client's rows are kept apart until all are in, and are then added up at once.

    def nothing(self, class_matrix: jax.Array) -> jax.Array:
        """What nobody has handed in yet."""
        return jnp.zeros((*self.classes.shape, class_matrix.shape[1]), class_matrix.dtype)

    def hand_in(self, handed_in: jax.Array, rows: jax.Array, client: jax.Array, done: jax.Array) -> jax.Array:
        """Rows [L, S, d] of the clients [L] that are done."""
        return handed_in.at[jnp.where(done, client, len(handed_in))].set(rows, mode="drop")

    def total(self, handed_in: jax.Array, num_classes: int) -> jax.Array:
        """[n, d]"""
        return scatter_add(num_classes, self.classes, self.valid[..., None] * handed_in)

    def row_weight(self, weight: jax.Array, num_classes: int) -> jax.Array:
        """Weights [K] of clients, added up for each class over those that asked for it: [n]."""
        return scatter_add(num_classes, self.classes, (self.valid * weight[:, None])[..., None])[:, 0]


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

    def rows(self, class_matrix: jax.Array) -> jax.Array:
        return class_matrix

    def nothing(self, class_matrix: jax.Array) -> jax.Array:
        return jnp.zeros_like(class_matrix)

    def hand_in(self, handed_in: jax.Array, rows: jax.Array, client: jax.Array, done: jax.Array) -> jax.Array:
        return handed_in + jnp.sum(jnp.where(done[:, None, None], rows, 0.0), axis=0)

    def total(self, handed_in: jax.Array, num_classes: int) -> jax.Array:
        return handed_in

    def row_weight(self, weight: jax.Array, num_classes: int) -> jax.Array:
        return jnp.full(num_classes, jnp.sum(weight))


Request = Sampled | Everything
