"""FedSS and its rivals. A method is a value: what a client requests, what competes in its loss, what the server adds.

To add one, write a factory that returns a `Method` and enter it in METHODS. The engine reads only the fields.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from fedss_jax import sampling, spreadout
from fedss_jax.class_matrix import Everything, Request, Sampled
from fedss_jax.types import Clients, UserError

Count = Callable[[Any], Any]  # |P_k| -> a number of classes, for an int or an array of them


def _keep(class_matrix: jax.Array, touched: jax.Array) -> jax.Array:
    return class_matrix


def _all_compete(request: Request) -> jax.Array:
    return request.valid


def _negatives_compete(request: Request) -> jax.Array:
    return request.valid & ~request.positive


@dataclasses.dataclass(frozen=True)
class Method:
    """How one method differs from the others.

    request(key, client, n): the classes that a client asks for.
    competes(request) -> [S] bool: the classes in every example's log-sum, besides its own.
    num_negatives(|P_k|): how many negatives a client with so many positives draws.
    after_step(rows, touched) -> rows: what the server does to the class matrix after its optimizer's step.
    every_row: whether a round changes rows of W that no client asked for (beyond what momentum does). after_step is
      then given all rows, else just those that were asked for.
    requests_all: whether every client asks for all classes.
    federated: False if there are no clients, only i.i.d. batches of all examples.
    """

    request: Callable[[jax.Array, Clients, int], Request]
    competes: Callable[[Request], jax.Array] = _all_compete
    num_negatives: Count = lambda num_positives: 0
    after_step: Callable[[jax.Array, jax.Array], jax.Array] = _keep
    every_row: bool = False
    requests_all: bool = False
    federated: bool = True

    def num_requested(self, num_positives: Any, n: int) -> Any:
        """How many classes a client with so many positives asks for."""
        return (
            jnp.full_like(num_positives, n) if self.requests_all else num_positives + self.num_negatives(num_positives)
        )


def _request_sampled(
    key: jax.Array,
    client: Clients,
    n: int,
    *,
    num_negatives: Count,
    correct_logits: bool,
) -> Sampled:
    """S_k = P_k and then N_k, in one padded array."""
    max_positives = client.positives.shape[0]
    # The padded width must hold the largest draw of any client, but no more than there are classes.
    max_negatives = min(int(num_negatives(max_positives)), n)
    count = jnp.asarray(num_negatives(client.num_positives))
    drawn = sampling.negatives(key, client.positives, client.num_positives, n, count, max_negatives)
    is_positive = jnp.arange(max_positives) < client.num_positives
    is_negative = jnp.arange(max_negatives) < count
    valid = jnp.concatenate([is_positive, is_negative])
    inclusion = count / jnp.maximum(n - client.num_positives, 1)
    correction = jnp.where(is_negative, jnp.log(jnp.maximum(inclusion, 1e-30)), 0.0)
    return Sampled(
        classes=jnp.where(valid, jnp.concatenate([client.positives, drawn]), 0),
        valid=valid,
        positive=jnp.concatenate([is_positive, jnp.zeros(max_negatives, bool)]),
        log_inclusion=jnp.concatenate([jnp.zeros(max_positives), correction * correct_logits]),
    )


def _request_all(key: jax.Array, client: Clients, n: int) -> Everything:
    return Everything(n)


def _sampled(num_negatives: Count, correct_logits: bool, competes: Callable[[Request], jax.Array]) -> Method:
    request = partial(_request_sampled, num_negatives=num_negatives, correct_logits=correct_logits)
    return Method(request, competes, num_negatives)


def fedss(*, num_negatives: int, correct_logits: bool) -> Method:
    """The paper's method: positives and sampled negatives all compete."""
    return _sampled(lambda num_positives: num_negatives, correct_logits, _all_compete)


def negonly(*, num_negatives: int, extra_negatives: bool, correct_logits: bool) -> Method:
    """Only the sampled negatives push an example away from its class; its client's other classes do not.

    extra_negatives: the paper's fairness arm. Every client draws |P_k| - 1 more, so that each example competes
    against as many classes as in FedSS.
    """
    if num_negatives == 0 and not extra_negatives:
        raise UserError("num_negatives is 0, but negonly has no other classes to tell apart; set at least 1")
    extra = 1 if extra_negatives else 0
    return _sampled(
        lambda num_positives: num_negatives + extra * (num_positives - 1), correct_logits, _negatives_compete
    )


def posonly() -> Method:
    """Each client solves its own small problem: only its own classes compete."""
    return fedss(num_negatives=0, correct_logits=False)


def fedaws(*, margin: float, spreadout_step: float, neighbours: int, touched_only: bool) -> Method:
    """PosOnly at the clients, then a spread-out step at the server (arXiv 2004.10342)."""
    after_step = partial(
        spreadout.step,
        margin=margin,
        step_size=spreadout_step,
        neighbours=neighbours,
        touched_only=touched_only,
    )
    return dataclasses.replace(posonly(), after_step=after_step, every_row=not touched_only)


def fullsoftmax() -> Method:
    """FedAvg with the whole class matrix at every client: what FedSS approximates."""
    return Method(request=_request_all, every_row=True, requests_all=True)


def centralized() -> Method:
    """No federation: the full softmax on i.i.d. batches."""
    return dataclasses.replace(fullsoftmax(), federated=False)


METHODS: dict[str, Callable[..., Method]] = {
    factory.__name__: factory for factory in (fedss, negonly, posonly, fedaws, fullsoftmax, centralized)
}


def create(name: str, options: Mapping[str, Any]) -> Method:
    """The named method. Each factory takes those of the options that it names as arguments."""
    if name not in METHODS:
        raise UserError(f"method is {name!r}, which does not exist; choose one of {', '.join(METHODS)}")
    factory = METHODS[name]
    return factory(**{key: options[key] for key in inspect.signature(factory).parameters})
