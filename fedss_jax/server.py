"""The server: turns a cohort's summed pseudo-gradients into the next theta."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding

from fedss_jax import defence, parallel, rows
from fedss_jax.defence import UNCLIPPED, Clipping
from fedss_jax.methods import Method
from fedss_jax.rows import Dense, Layout, Lazy
from fedss_jax.types import Params, ServerState, Theta, UserError

ROW_WEIGHTINGS = ("cohort", "holders")


class CohortSum(NamedTuple):
    """The pseudo-gradients that count of a cohort's, each weighted with its client's number of examples n_k, summed."""

    encoder: Params
    rows: jax.Array  # [R, d] of the wanted classes; a client that does not hold a row adds zero
    weight: jax.Array  # [] sum of n_k
    row_weight: jax.Array  # [R] sum of n_k over the clients that hold the row
    within: Any = 1.0  # [] share of the clients whose pseudo-gradient was within the bound on its length


def make_optimizer(
    section: str, name: str, learning_rate: optax.ScalarOrSchedule, options: Mapping[str, Any]
) -> optax.GradientTransformation:
    """Any optimizer of optax by its name: sgd, adam (FedAdam), yogi (FedYogi), adagrad (FedAdagrad) ...

    section: the part of the config that asks for it, to name in messages.
    """
    known = {
        alias: factory
        for alias, factory in inspect.getmembers(optax, inspect.isfunction)
        if "learning_rate" in inspect.signature(factory).parameters and not alias.startswith("_")
    }
    if name not in known:
        raise UserError(f"{section}.optimizer is {name!r}, which optax does not have; choose one of {', '.join(known)}")
    accepted = [option for option in inspect.signature(known[name]).parameters if option != "learning_rate"]
    unknown = sorted(set(options) - set(accepted))
    if unknown:
        raise UserError(
            f"{section}.options has {', '.join(unknown)}, which optax.{name} does not take; it takes"
            f" {', '.join(accepted)} (--config.{section}.options= clears them)"
        )
    try:
        optimizer = known[name](learning_rate, **options)
        _, kept = jax.eval_shape(lambda w: optimizer.update(w, optimizer.init(w), w), jnp.zeros((2, 2)))
        if any(jnp.issubdtype(array.dtype, jax.dtypes.prng_key) for array in jax.tree.leaves(kept)):
            raise ValueError("it draws random numbers of its own, which a checkpoint does not keep")
    except Exception as error:  # optax raises nearly anything on options that it cannot use
        reason = str(error).splitlines()[0]
        raise UserError(f"optax.{name} does not work as {section}.optimizer with {dict(options)}: {reason}") from None
    return optimizer


@dataclasses.dataclass(frozen=True)
class Server:
    optimizer: optax.GradientTransformation  # of the encoder
    rows: Lazy | Dense  # how W is kept and moved
    method: Method
    row_weighting: str = "cohort"
    clipping: Clipping = UNCLIPPED

    def init(self, theta: Theta) -> ServerState:
        encoder, class_matrix = theta
        start, opt_state = jnp.zeros((), jnp.int32), self.optimizer.init(encoder)
        return ServerState(start, start, encoder, opt_state, self.rows.init(class_matrix), self.clipping.start())

    def abstract(self, theta: Theta) -> ServerState:
        """What `start` gives, as shapes and places. theta: with as many rows as there is room for."""
        layout = self.rows.layout
        shapes = jax.eval_shape(self.init, theta)
        everywhere = NamedSharding(layout.mesh, parallel.REPLICATED)
        shardings = jax.tree.map(lambda _: everywhere, shapes)
        shardings = shardings._replace(rows=self.rows.places(shapes.rows))
        return jax.tree.map(lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), shapes, shardings)

    def start(self, theta: Theta) -> ServerState:
        """The same, where it belongs on the mesh. Theta is given up: there may be no room for two."""
        layout = self.rows.layout
        rows = parallel.put(layout.fill_up(theta.class_matrix), layout.sharding)
        theta = Theta(parallel.replicate(layout.mesh, theta.encoder), rows)
        places = jax.tree.map(lambda a: a.format, self.abstract(theta))
        return jax.jit(self.init, donate_argnums=0, out_shardings=places)(theta)

    def theta(self, state: ServerState) -> Theta:
        """The whole model, with all rows up to date. (A copy of W: who needs only some of it asks `rows` for that.)"""
        return Theta(state.encoder, self.rows.current(state.rows, state.steps)[: self.rows.layout.num_classes])

    def take(self, state: ServerState, wanted: Any) -> Any:
        """The rows of W that a cohort wants (`rows`), and what else is needed to move them."""
        return self.rows.take(state.rows, wanted, state.steps)

    def step(self, state: ServerState, wanted: Any, taken: Any, cohort: CohortSum) -> ServerState:
        """Average, take the optimizer's step, then the method's own.

        wanted: a class_matrix.Wanted or Everything; taken: what `take` gave for it.
        A row's average is over the whole cohort's weight, as in the paper, or over its holders' only. Where nobody's
        update counts, or a number of the next state would not be finite, the state stays as it is.
        """
        weight = jnp.maximum(cohort.weight, 1.0)
        row_weight = weight
        if self.row_weighting == "holders":
            row_weight = jnp.maximum(cohort.row_weight, 1.0)[:, None]
        gradient = jax.tree.map(lambda g: g / weight, cohort.encoder)
        updates, opt_state = self.optimizer.update(gradient, state.opt_state, state.encoder)
        encoder = optax.apply_updates(state.encoder, updates)
        moved, moves = self.rows.step(
            state.rows,
            taken,
            wanted,
            cohort.rows / row_weight,
            cohort.row_weight > 0,
            self.method.after_step,
            (cohort.weight > 0) & defence.is_finite((encoder, opt_state)),
        )
        others = encoder, opt_state, self.clipping.next(state.bound, cohort.within)
        before = state.encoder, state.opt_state, state.bound
        encoder, opt_state, bound = jax.tree.map(lambda new, old: jnp.where(moves, new, old), others, before)
        return ServerState(state.round + 1, state.steps + moves, encoder, opt_state, moved, bound)


def make_server(
    layout: Layout,
    method: Method,
    *,
    optimizer: str = "sgd",
    learning_rate: optax.ScalarOrSchedule = 1.0,
    options: Mapping[str, Any] = MappingProxyType({"momentum": 0.9}),
    row_weighting: str = "cohort",
    clipping: Clipping = UNCLIPPED,
    section: str = "server",
) -> Server:
    """section: the part of the config that asks for it, to name in messages."""
    made = make_optimizer(section, optimizer, learning_rate, options)
    kept = rows.make(layout, optimizer, learning_rate, options, made, method.every_row)
    return Server(made, kept, method, row_weighting, clipping)
