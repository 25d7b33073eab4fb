"""What goes wrong with a round's clients: they drop out, come too late, or send what no honest client sends.

All of it is drawn on the device, from the key that a client has for the round, so that it follows who the client is and
not where it is computed. What the server does about it is in `defence.py`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

DROPOUT, SPEED, UPDATE = range(3)  # a client's key for its faults splits into one for each


class Turnout(NamedTuple):
    """What becomes of the clients that are chosen for a round, [chosen] each; who is neither reports in time."""

    dropped: jax.Array  # bool
    late: jax.Array  # bool

    @property
    def reports(self) -> jax.Array:
        return ~(self.dropped | self.late)


@dataclasses.dataclass(frozen=True)
class Faults:
    """Shares are those of single clients in single rounds; every client may be hit in every round.

    Of those that are chosen, `dropout` are never heard of again. The others take a time that goes with their examples
    and with a speed that is log-normal: `spread` is the standard deviation of its logarithm. Who is past the deadline,
    or not among the first K to finish, is late. The unit of the deadline is what a client of mean size and median speed
    takes. `over_selection` is the share of clients that are chosen beyond K to make up for that (Bonawitz et al. 2019).
    Of those that report, `nan` send NaN in place of every number, and `scaled` their update times `scale`.
    """

    dropout: float = 0.0
    spread: float = 0.0
    deadline: float = 0.0  # 0: none
    over_selection: float = 0.0
    nan: float = 0.0
    scaled: float = 0.0
    scale: float = 1000.0

    @property
    def loses_clients(self) -> bool:
        return self.dropout > 0 or self.deadline > 0 or self.over_selection > 0

    @property
    def spoils_updates(self) -> bool:
        return self.nan > 0 or self.scaled > 0

    def chosen(self, clients_per_round: int) -> int:
        """How many clients are chosen, for so many to count."""
        beyond = round(clients_per_round * self.over_selection, 6)  # not 3.0000000004, which makes 4
        return clients_per_round + math.ceil(beyond)

    def turnout(
        self, keys: jax.Array, num_examples: jax.Array, mean_examples: jax.Array, clients_per_round: int
    ) -> Turnout:
        """Of the chosen clients, by their keys for faults and their numbers of examples [chosen]."""
        dropped = jax.vmap(lambda key: _uniform(key, DROPOUT) < self.dropout)(keys)
        if not (self.deadline or self.over_selection):
            return Turnout(dropped, jnp.zeros_like(dropped))
        slowness = jnp.exp(self.spread * jax.vmap(lambda key: jax.random.normal(jax.random.fold_in(key, SPEED)))(keys))
        time = jnp.where(dropped, jnp.inf, slowness * num_examples / mean_examples)
        finished = jnp.zeros(len(time), jnp.int32).at[jnp.argsort(time, stable=True)].set(jnp.arange(len(time)))
        late = finished >= clients_per_round
        if self.deadline:
            late = late | (time > self.deadline)
        return Turnout(dropped, late & ~dropped)

    def spoil(self, keys: jax.Array) -> jax.Array:
        """What each client's update is multiplied by before it is sent: 1 where it is honest. [K]"""

        def factor(key: jax.Array) -> jax.Array:
            drawn = _uniform(key, UPDATE)
            scaled = jnp.where(drawn < self.nan + self.scaled, self.scale, 1.0)
            return jnp.where(drawn < self.nan, jnp.nan, scaled)

        return jax.vmap(factor)(keys)


def _uniform(key: jax.Array, use: int) -> jax.Array:
    return jax.random.uniform(jax.random.fold_in(key, use))


NO_FAULTS = Faults()
