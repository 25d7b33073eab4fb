"""The server: turns a cohort's summed pseudo-gradients into the next theta."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedss_jax.methods import Method
from fedss_jax.types import Params, ServerState, Theta, UserError

ROW_WEIGHTINGS = ("cohort", "holders")


class CohortSum(NamedTuple):
    """A cohort's pseudo-gradients, each weighted with its client's number of examples n_k, summed."""

    encoder: Params
    rows: jax.Array  # [n, d]; a client that does not hold a row adds zero
    weight: jax.Array  # [] sum of n_k
    row_weight: jax.Array  # [n] sum of n_k over the clients that hold the row


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
        jax.eval_shape(lambda w: optimizer.update(w, optimizer.init(w), w), jnp.zeros((2, 2)))
    except Exception as error:  # optax raises nearly anything on options that it cannot use
        reason = str(error).splitlines()[0]
        raise UserError(f"optax.{name} does not work as {section}.optimizer with {dict(options)}: {reason}") from None
    return optimizer


@dataclasses.dataclass(frozen=True)
class Server:
    optimizer: optax.GradientTransformation
    method: Method
    row_weighting: str = "cohort"

    def init(self, theta: Theta) -> ServerState:
        return ServerState(jnp.zeros((), jnp.int32), theta, self.optimizer.init(theta))

    def step(self, state: ServerState, cohort: CohortSum) -> ServerState:
        """Average, take the optimizer's step, then the method's own.

        A row's average is over the whole cohort's weight, as in the paper, or over its holders' only.
        """
        weight = jnp.maximum(cohort.weight, 1.0)
        row_weight = weight
        if self.row_weighting == "holders":
            row_weight = jnp.maximum(cohort.row_weight, 1.0)[:, None]
        gradient = Theta(jax.tree.map(lambda g: g / weight, cohort.encoder), cohort.rows / row_weight)
        updates, opt_state = self.optimizer.update(gradient, state.opt_state, state.theta)
        theta = optax.apply_updates(state.theta, updates)
        touched = cohort.row_weight > 0
        theta = theta._replace(class_matrix=self.method.after_step(theta.class_matrix, touched))
        return ServerState(state.round + 1, theta, opt_state)
