"""What the server takes of what clients send: nothing that is not a number, and no update that is longer than a bound.

An update's length is that of all its numbers together, encoder and rows of W. One whose length is no longer a float32,
from about 10^19 on, is taken for non-finite.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

# Of Andrew et al. 2021, "Differentially Private Learning with Adaptive Clipping": the bound at the start, where none is
# given, and how fast it follows.
FIRST_BOUND, RATE = 0.1, 0.2


@dataclasses.dataclass(frozen=True)
class Clipping:
    """Longer updates are shortened to a bound.

    With a quantile, the bound moves to where that share of the updates is within it, and begins at `norm`.
    """

    norm: float = 0.0  # 0: no bound, or with a quantile the usual start
    quantile: float = 0.0  # 0: the bound stays

    def start(self) -> jax.Array | None:
        """What the server keeps of a bound that moves."""
        return jnp.asarray(self.norm or FIRST_BOUND, jnp.float32) if self.quantile else None

    def bound(self, kept: jax.Array | None) -> jax.Array | None:
        """Of a round; None where there is none."""
        return kept if self.quantile else jnp.asarray(self.norm, jnp.float32) if self.norm else None

    def next(self, kept: jax.Array | None, within: jax.Array) -> jax.Array | None:
        """After a round of whose updates such a share was within the bound."""
        return kept * jnp.exp(-RATE * (within - self.quantile)) if kept is not None else None


UNCLIPPED = Clipping()


def squares(tree: Any) -> jax.Array:
    """Of arrays [L, ...], the sum of squares of each entry's numbers: [L]."""
    of_each = [jnp.sum(jnp.square(a), axis=tuple(range(1, a.ndim))) for a in jax.tree.leaves(tree)]
    return sum(of_each, jnp.zeros(()))


def is_finite(tree: Any) -> jax.Array:
    """Whether all numbers of it are. []"""
    numbers = [a for a in jax.tree.leaves(tree) if jnp.issubdtype(a.dtype, jnp.inexact)]
    return jnp.all(jnp.asarray([jnp.all(jnp.isfinite(a)) for a in numbers], bool))
