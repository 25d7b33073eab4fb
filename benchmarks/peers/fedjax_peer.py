"""FedJAX: federated averaging over its for_each_client, as in its algorithms.fed_avg.

    python benchmarks/peers/fedjax_peer.py FOLDER --rounds R [--threads T] [--variant V]

Variants are FedJAX's backends: `jit`, one client after the other, or `pmap`, with a CPU device for each thread.
"""

# mypy: ignore-errors

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import common
import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

Params = dict[str, Array]
VALID = dict(window_strides=(1, 1), padding="VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def lr(params: Params, x: Array) -> Array:
    return x


def cnn(params: Params, x: Array) -> Array:
    for name in ("conv1", "conv2"):
        x = jax.lax.conv_general_dilated(x, params[f"{name}.kernel"], **VALID)
        x = jax.nn.relu(x + params[f"{name}.bias"])
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = x.reshape(x.shape[0], -1) @ params["fc.kernel"] + params["fc.bias"]
    return jax.nn.relu(x)


def head(params: Params, x: Array) -> Array:
    return x @ params["A"]


ENCODERS = {encoder.__name__: encoder for encoder in (lr, cnn, head)}


def unit(x: Array) -> Array:
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True))


def training(work: common.Workload) -> Callable:
    """for_each_client of local SGD. All clients get all parameters; of W they touch the rows of S_k only."""
    encode, scale, rate = ENCODERS[work.meta.model], work.meta.logit_scale, work.meta.learning_rate

    def loss_of(params: Params, batch: dict[str, Array], log_inclusion: Array | None) -> Array:
        embeddings, rows = encode(params, batch["x"]), params["W"]
        if log_inclusion is None:
            logits = embeddings @ rows.T
        else:
            logits = scale * unit(embeddings) @ unit(rows).T - log_inclusion
        chosen = jnp.take_along_axis(logits, batch["y"][:, None], axis=1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=1) - chosen)

    def init(params: Params, client: dict[str, Array]) -> dict[str, Any]:
        return {"params": params, **client}

    def step(state: dict[str, Any], batch: dict[str, Array]) -> tuple[dict[str, Any], Array]:
        params, classes = state["params"], state.get("classes")
        local = params if classes is None else {**params, "W": params["W"][classes]}
        loss, gradient = jax.value_and_grad(loss_of)(local, batch, state.get("log_inclusion"))
        change = jax.tree_util.tree_map(lambda g: -rate * g, gradient)
        after = {name: params[name] + change[name] for name in params if classes is None or name != "W"}
        if classes is not None:
            after["W"] = params["W"].at[classes].add(change["W"])
        return {**state, "params": after}, loss

    def final(params: Params, state: dict[str, Any]) -> Params:
        return jax.tree_util.tree_map(jnp.subtract, params, state["params"])

    return fedjax.for_each_client(init, step, final, with_step_result=True)


def cohort(work: common.Workload, round: int) -> Iterator[tuple[int, Any, dict[str, np.ndarray]]]:
    for slot in range(work.meta.clients_per_round):
        data = fedjax.ClientDataset({"x": work.features[work.rows(round, slot)], "y": work.answers(round, slot)})
        request = {}
        if work.sampled:
            request = {"classes": work.classes[round, slot], "log_inclusion": work.log_inclusion[round, slot]}
        yield slot, data.batch(batch_size=work.meta.batch_size), request


def main() -> None:
    flags = common.flags(__doc__, ["jit", "pmap"])
    if flags.variant == "pmap":
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={flags.threads}"
    fedjax.set_for_each_client_backend(flags.variant)
    work = common.read(flags.folder)
    meta = work.meta
    train = training(work)
    optimizer = fedjax.optimizers.sgd(meta.server_learning_rate, meta.server_momentum or None)
    apply = jax.jit(optimizer.apply)
    params = {name: jnp.asarray(value) for name, value in work.init.items()}
    state = optimizer.init(params)
    sizes = np.diff([*range(0, meta.examples_per_client, meta.batch_size), meta.examples_per_client])
    step_losses: list[list[list[Array]]] = []  # of rounds, of clients, of steps; read when all is over

    def updates(round: int) -> Iterator[tuple[Params, float]]:
        step_losses.append([])
        for _, delta, losses in train(params, cohort(work, round)):
            step_losses[-1].append(losses)
            yield delta, float(meta.examples_per_client)

    watch = common.Stopwatch()
    for round in range(flags.rounds):
        mean = fedjax.tree_util.tree_mean(updates(round))
        state, params = apply(mean, state, params)
        jax.block_until_ready(params)
        watch.lap()
    losses = [np.average(np.asarray(clients, np.float32), axis=1, weights=sizes).mean() for clients in step_losses]
    common.report("fedjax", "fedjax", flags, watch, losses)


if __name__ == "__main__":
    main()
