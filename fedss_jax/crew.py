"""Who works on a client's step: one device, or all of them together.

With few classes at a client, each device trains clients of its own (`Alone`). A softmax over all classes of a W that no
device has room for is trained by all devices at once (`Together`): each embeds a share of the batch, gets to know the
embeddings of the others, and has the logits of its own rows. They exchange embeddings and sums, never rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fedss_jax import losses, parallel
from fedss_jax.class_matrix import Request
from fedss_jax.parallel import CLIENTS
from fedss_jax.rows import Layout
from fedss_jax.types import Params, Theta


class Sums(NamedTuple):
    """What clients have handed in, weighted with their numbers of examples."""

    encoder: Params
    rows: jax.Array  # as their request keeps them
    loss: jax.Array  # []
    norms: jax.Array  # [K] lengths of their updates, as they sent them; inf where one is not finite


Logits = Callable[[jax.Array, jax.Array], jax.Array]  # embeddings [B, d], rows of W [S, d] -> [B, S]


@dataclasses.dataclass(frozen=True)
class Alone:
    """Each device trains clients of its own."""

    by_group = parallel.BY_CLIENT  # where that is which each group of devices has for itself
    rows = parallel.REPLICATED  # where the rows of W are that clients receive

    def groups(self, mesh: Mesh) -> int:
        """Of devices that train clients apart."""
        return mesh.size

    def padded(self, size: int) -> int:
        """Of a step of so many examples, those that are computed."""
        return size

    def own(self, examples: jax.Array) -> jax.Array:
        """Of a step's examples [B], those that this device embeds."""
        return examples

    def softmax(
        self, embeddings: jax.Array, rows: jax.Array, logits: Logits, request: Request, competes: Any, labels: jax.Array
    ) -> jax.Array:
        """Losses [B] of all examples, from the embeddings of one's own and one's rows of W."""
        is_target = request.is_target(labels)
        return losses.sampled_softmax(logits(embeddings, rows), is_target, competes(request), request.log_inclusion)

    def total(self, gradient: Theta) -> Theta:
        """Over all devices that have a part in it."""
        return gradient

    def of_all_rows(self, total: jax.Array) -> jax.Array:
        """A sum over a client's rows of W, from that over the rows that this device has."""
        return total

    def make_own(self, rows: Any) -> Any:
        """Rows of W as each device's own, to be trained there."""
        return parallel.varying(rows)

    def collected(self, share: Callable[..., Sums], mesh: Mesh, in_specs: tuple[Any, ...]) -> Callable[..., Sums]:
        """What the clients of all devices hand in, from what those of one do."""
        return parallel.summed(share, mesh, in_specs)


@dataclasses.dataclass(frozen=True)
class Together:
    """All devices train each client, of whose W each has a share. For methods that request all classes."""

    layout: Layout

    by_group = parallel.REPLICATED
    rows = parallel.BY_CLIENT

    def groups(self, mesh: Mesh) -> int:
        return 1

    def padded(self, size: int) -> int:
        devices = self.layout.mesh.size
        return -(-size // devices) * devices

    def own(self, examples: jax.Array) -> jax.Array:
        share = len(examples) // self.layout.mesh.size
        return jax.lax.dynamic_slice_in_dim(examples, jax.lax.axis_index(CLIENTS) * share, share)

    def softmax(
        self, embeddings: jax.Array, rows: jax.Array, logits: Logits, request: Request, competes: Any, labels: jax.Array
    ) -> jax.Array:
        classes = self.layout.first() + jnp.arange(self.layout.share)
        everyones = jax.lax.all_gather(embeddings, CLIENTS, tiled=True)
        own = jnp.where(classes < self.layout.num_classes, logits(everyones, rows), -jnp.inf)
        largest = jax.lax.pmax(jax.lax.stop_gradient(jnp.max(own, axis=1)), CLIENTS)
        total = jax.lax.psum(jnp.sum(jnp.exp(own - largest[:, None]), axis=1), CLIENTS)
        target = jax.lax.psum(jnp.sum(jnp.where(labels[:, None] == classes, own, 0.0), axis=1), CLIENTS)
        return largest + jnp.log(total) - target

    def total(self, gradient: Theta) -> Theta:
        return gradient._replace(encoder=parallel.varying(jax.lax.psum(gradient.encoder, CLIENTS)))

    def of_all_rows(self, total: jax.Array) -> jax.Array:
        return parallel.varying(jax.lax.psum(total, CLIENTS))

    def make_own(self, rows: Any) -> Any:
        return rows  # they are already

    def collected(self, share: Callable[..., Sums], mesh: Mesh, in_specs: tuple[Any, ...]) -> Callable[..., Sums]:
        """Everyone has the same sums, but for rows, of which each has its own."""

        def marked(*arguments: Any) -> Sums:
            sums = share(*arguments)
            return jax.tree.map(lambda a: a[None], sums)._replace(rows=sums.rows)

        shares = jax.shard_map(marked, mesh=mesh, in_specs=in_specs, out_specs=parallel.BY_CLIENT)

        def all_shares(*arguments: Any) -> Sums:
            sums = shares(*arguments)
            return Sums(*(a if a is sums.rows else parallel.of_first(mesh, a) for a in sums))

        return all_shares


Crew = Alone | Together
ALONE = Alone()
