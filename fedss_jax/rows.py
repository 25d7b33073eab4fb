"""What the server keeps of W, and how it reads and moves it: at the cost of the rows that a cohort asks for, not of n.

With momentum, a row goes on moving while nobody asks for it. But where to is known: after r such rounds a velocity v is
v mu^r, and the row has moved by the sum of what came in between. So rows are left as they were when somebody last moved
them, and are brought up to date when they are asked for (`Lazy`). The numbers are those of optax, which moves all rows
in every round; optimizers whose idle steps have no such form do just that (`Dense`).

On several devices each keeps an equal share of the rows, and none ever has all of them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.experimental import layout as memory
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedss_jax import class_matrix, defence, parallel
from fedss_jax.class_matrix import Everything, Wanted

AfterStep = Callable[[jax.Array, jax.Array], jax.Array]  # rows [R, d], which of them were touched [R] -> rows


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the rows of W are: each on one device of the mesh, or all on every device."""

    mesh: Mesh
    num_classes: int
    sharded: bool

    @property
    def spec(self) -> PartitionSpec:
        return parallel.BY_CLIENT if self.sharded else parallel.REPLICATED

    @property
    def sharding(self) -> NamedSharding:
        return NamedSharding(self.mesh, self.spec)

    @property
    def num_rows(self) -> int:
        """With padding, so that all shares are equal."""
        return parallel.padded(self.num_classes, self.mesh) if self.sharded else self.num_classes

    @property
    def share(self) -> int:
        """Rows on a device."""
        return self.num_rows // self.mesh.size if self.sharded else self.num_rows

    def first(self) -> jax.Array:
        """The number of a device's first row. To be asked inside shard_map."""
        return jax.lax.axis_index(parallel.CLIENTS) * self.share if self.sharded else jnp.zeros((), jnp.int32)

    def everywhere(self, function: Callable[..., Any], specs: tuple[PartitionSpec, ...], out: PartitionSpec) -> Any:
        """The function run on every device, on its share."""
        # The check is for gradients and sums over devices. There are none here, and loops would need casts for it.
        return jax.shard_map(function, mesh=self.mesh, in_specs=specs, out_specs=out, check_vma=False)

    def is_by_row(self, array: jax.Array | jax.ShapeDtypeStruct) -> bool:
        """Whether an array that is kept with W has one entry for each row."""
        return array.ndim > 0 and array.shape[0] == self.num_rows

    def sharding_of(self, array: jax.ShapeDtypeStruct) -> NamedSharding:
        """Where an array goes that the optimizer keeps: with the rows, if it has one entry for each."""
        return self.sharding if self.is_by_row(array) else NamedSharding(self.mesh, parallel.REPLICATED)

    def format_of(self, array: jax.ShapeDtypeStruct) -> memory.Format:
        """The same, and row after row in memory: for what is read and written by the row.

        XLA does so by itself, but for TPUs. There it keeps [n, d] by columns, as rows of less than 128 numbers are
        filled up to that; and to reach some rows, a round would turn all of them around, and back.
        """
        return memory.Format(memory.Layout(tuple(range(array.ndim))), self.sharding_of(array))

    def init(self, key: jax.Array, dim: int, norm: float) -> jax.Array:
        """W at the start, [n, d]; the same numbers on any devices."""

        def own(key: jax.Array) -> jax.Array:
            return class_matrix.init_share(key, self.first(), self.share, dim, norm)

        return jax.jit(self.everywhere(own, (parallel.REPLICATED,), self.spec))(parallel.replicate(self.mesh, key))

    def fill_up(self, class_matrix: jax.Array) -> jax.Array:
        """With as many rows as there is room for."""
        missing = self.num_rows - len(class_matrix)
        return jnp.pad(class_matrix, ((0, missing), (0, 0))) if missing else class_matrix

    def places(self, classes: jax.Array) -> jax.Array:
        """Where classes [R] are in a device's share: those of other devices past its end, no two at the same place."""
        place = classes - self.first()
        # Not below 0, where JAX would count back from the end.
        return jnp.where(place < 0, place + 2 * (self.num_rows + len(classes)), place)

    def take(self, kept: Any, classes: jax.Array) -> Any:
        """Some rows [R, ...] of arrays [n, ...], on every device. Classes that do not exist give anything."""

        def own(kept: Any, classes: jax.Array) -> Any:
            place = self.places(classes)
            return jax.tree.map(lambda a: a.at[place].get(mode="fill", fill_value=0), kept)

        if not self.sharded:
            return own(kept, classes)
        return parallel.summed(own, self.mesh, (self.spec, parallel.REPLICATED))(kept, classes)

    def put(self, kept: Any, classes: jax.Array, rows: Any) -> Any:
        """Arrays [n, ...] with other rows for some classes, no two the same; those that do not exist are ignored."""

        def set_own(kept: Any, classes: jax.Array, rows: Any) -> Any:
            place = self.places(classes)
            return jax.tree.map(lambda a, new: a.at[place].set(new, mode="drop", unique_indices=True), kept, rows)

        if not self.sharded:
            return set_own(kept, classes, rows)
        everywhere = parallel.REPLICATED
        return self.everywhere(set_own, (self.spec, everywhere, everywhere), self.spec)(kept, classes, rows)


class LazyRows(NamedTuple):
    """Rows as somebody last moved them. Of all classes [n, ...] or of some."""

    rows: jax.Array  # [n, d]
    velocity: jax.Array | None  # [n, d]; None without momentum
    moved: jax.Array | None  # [n] int32: steps that the server had taken when the row was last moved


@dataclasses.dataclass(frozen=True)
class Lazy:
    """optax.sgd, with or without momentum."""

    layout: Layout
    learning_rate: float
    momentum: float
    nesterov: bool

    def places(self, kept: LazyRows) -> LazyRows:
        """How it lies on the devices. kept: as shapes."""
        return jax.tree.map(self.layout.format_of, kept)

    def init(self, class_matrix: jax.Array) -> LazyRows:
        if not self.momentum:
            return LazyRows(class_matrix, None, None)
        return LazyRows(class_matrix, jnp.zeros_like(class_matrix), jnp.zeros(len(class_matrix), jnp.int32))

    def settle(self, kept: LazyRows, steps: jax.Array) -> LazyRows:
        """Rows as they are after so many steps."""
        if kept.velocity is None or kept.moved is None:
            return kept
        idle = (steps - kept.moved).astype(jnp.float32)[:, None]
        log_momentum = math.log(self.momentum)
        # mu + mu^2 + ... + mu^idle; expm1, as for mu near 1 the difference 1 - mu^idle would have few digits left
        travelled = self.momentum * jnp.expm1(idle * log_momentum) / math.expm1(log_momentum)
        if self.nesterov:
            travelled = self.momentum * travelled
        return LazyRows(
            kept.rows - self.learning_rate * travelled * kept.velocity,
            jnp.exp(idle * log_momentum) * kept.velocity,
            # Always `steps`, but worked out from what was read: else XLA could write before it reads, and to be safe
            # copies the whole array.
            jnp.maximum(kept.moved, steps),
        )

    def by_row(self, kept: LazyRows) -> LazyRows:
        """What `current` needs, with one entry for each row."""
        return kept

    def current(self, kept: LazyRows, steps: jax.Array) -> jax.Array:
        """Of some or all classes, the rows as they are after so many steps."""
        return self.settle(kept, steps).rows

    def take(self, kept: LazyRows, wanted: Wanted, steps: jax.Array) -> LazyRows:
        return self.settle(self.layout.take(kept, wanted.classes), steps)

    def step(
        self,
        kept: LazyRows,
        taken: LazyRows,
        wanted: Wanted,
        gradient: jax.Array,
        touched: jax.Array,
        after_step: AfterStep,
        may_move: jax.Array,
    ) -> tuple[LazyRows, jax.Array]:
        """All rows after a step, and whether it was taken: not if it may not be, or would leave a row not finite.

        Of the wanted rows, gradient [R, d], which for all others is zero, and touched [R].
        """
        moved = gradient
        velocity, steps = None, None
        if taken.velocity is not None and taken.moved is not None:
            velocity, steps = gradient + self.momentum * taken.velocity, taken.moved + 1
            moved = gradient + self.momentum * velocity if self.nesterov else velocity
        stepped = LazyRows(after_step(taken.rows - self.learning_rate * moved, touched), velocity, steps)
        moves = may_move & defence.is_finite(stepped)
        # Not a choice between two states, for which all rows would be copied: rows that do not exist are ignored.
        nowhere = self.layout.num_rows + jnp.arange(len(wanted.classes))
        return self.layout.put(kept, jnp.where(moves, wanted.classes, nowhere), stepped), moves


class DenseRows(NamedTuple):
    rows: jax.Array  # [n, d]
    opt_state: Any


@dataclasses.dataclass(frozen=True)
class Dense:
    """Any optimizer of optax, on all rows."""

    layout: Layout
    optimizer: optax.GradientTransformation

    def places(self, kept: DenseRows) -> DenseRows:
        return jax.tree.map(self.layout.sharding_of, kept)

    def init(self, class_matrix: jax.Array) -> DenseRows:
        return DenseRows(class_matrix, self.optimizer.init(class_matrix))

    def by_row(self, kept: DenseRows) -> DenseRows:
        return DenseRows(kept.rows, None)

    def current(self, kept: DenseRows, steps: jax.Array) -> jax.Array:
        return kept.rows

    def take(self, kept: DenseRows, wanted: Wanted | Everything, steps: jax.Array) -> DenseRows:
        rows = kept.rows if isinstance(wanted, Everything) else self.layout.take(kept.rows, wanted.classes)
        return DenseRows(rows, None)

    def step(
        self,
        kept: DenseRows,
        taken: DenseRows,
        wanted: Wanted | Everything,
        gradient: jax.Array,
        touched: jax.Array,
        after_step: AfterStep,
        may_move: jax.Array,
    ) -> tuple[DenseRows, jax.Array]:
        """As Lazy's."""
        num_rows, n = self.layout.num_rows, self.layout.num_classes
        if isinstance(wanted, Wanted):
            gradient = self.layout.put(jnp.zeros_like(kept.rows), wanted.classes, gradient)
            touched = self.layout.put(jnp.zeros(num_rows, bool), wanted.classes, touched)
        touched = jnp.broadcast_to(touched, num_rows)

        def stepped(kept: DenseRows, gradient: jax.Array, touched: jax.Array) -> DenseRows:
            updates, opt_state = self.optimizer.update(gradient, kept.opt_state, kept.rows)
            rows = kept.rows + updates
            return DenseRows(rows.at[:n].set(after_step(rows[:n], touched[:n])), opt_state)  # without padding

        # Worked out twice, once only to look at it: with two states to choose from, both would be in memory.
        moves = may_move & defence.is_finite(stepped(kept, gradient, touched))
        rows, opt_state = jax.lax.cond(moves, stepped, lambda kept, *_: kept, kept, gradient, touched)
        return DenseRows(jax.lax.with_sharding_constraint(rows, self.layout.sharding), opt_state), moves


def make(
    layout: Layout,
    name: str,
    learning_rate: optax.ScalarOrSchedule,
    options: Mapping[str, Any],
    optimizer: optax.GradientTransformation,
    every_row: bool,
) -> Lazy | Dense:
    """How W is moved by optax's optimizer of that name. every_row: whether all rows change in a round anyway."""
    momentum = options.get("momentum") or 0.0
    closed_form = name == "sgd" and not set(options) - {"momentum", "nesterov"} and 0 <= momentum < 1
    if closed_form and not callable(learning_rate) and not every_row:
        return Lazy(layout, float(learning_rate), momentum, bool(options.get("nesterov", False)))
    return Dense(layout, optimizer)
