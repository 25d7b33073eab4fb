"""This project's engine on a workload of workloads.py.

    python -m benchmarks.engine FOLDER --rounds R [--threads T] [--lanes L] [--part-size B] [--rounds-per-dispatch N]
                                [--devices D | --processes P]

Prints what the peers print: one line of JSON. With several processes each has cores of its own, as hosts of a pod have.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from fedss_jax import hosts, losses, methods, models, packing, parallel
from fedss_jax.client import LocalTraining
from fedss_jax.data.augment import UNCHANGED
from fedss_jax.data.partition import make_population
from fedss_jax.models import layers
from fedss_jax.round import Packing, make_round
from fedss_jax.rows import Layout
from fedss_jax.server import make_server
from fedss_jax.types import Clients, Dataset, Examples, Model, Params, Resident, Theta


class Cnn(nn.Module):
    """Two 3 x 3 convolutions without padding, 2 x 2 max-pooling, and a layer of 128."""

    dim: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for name, features in (("conv1", 32), ("conv2", 64)):
            kernel = self.param(f"{name}.kernel", nn.initializers.lecun_normal(), (3, 3, x.shape[-1], features))
            bias = self.param(f"{name}.bias", nn.initializers.zeros, (features,))
            valid = ((0, 0), (0, 0))
            x = layers.form_of("auto").dense(x, kernel.reshape(-1, features), 3, 1, valid)
            x = nn.relu(x + bias)
        x = layers.max_pool(x, 2)
        x = x.reshape(len(x), -1)
        kernel = self.param("fc.kernel", nn.initializers.lecun_normal(), (x.shape[-1], self.dim))
        bias = self.param("fc.bias", nn.initializers.zeros, (self.dim,))
        return nn.relu(layers.form_of("auto").pointwise(x, kernel) + bias)


def read(folder: Path) -> tuple[SimpleNamespace, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """meta.json, the arrays and the initial parameters."""
    meta = SimpleNamespace(**json.loads((folder / "meta.json").read_text()))
    arrays = {path.stem: np.load(path) for path in folder.glob("*.npy")}
    return meta, arrays, {path.stem: np.load(path) for path in (folder / "init").glob("*.npy")}


def encoder_of(meta: SimpleNamespace, init: dict[str, np.ndarray]) -> tuple[Model, Params]:
    """The workload's encoder, and its parameters."""
    init = {name: array for name, array in init.items() if name != "W"}
    if meta.model == "lr":
        return Model(lambda key: {}, lambda params, x: x), {}
    if meta.model == "cnn":
        return Model(lambda key: init, lambda params, x: jnp.asarray(Cnn(meta.dim).apply({"params": params}, x))), init
    if meta.model == "head":
        product = layers.form_of("auto").pointwise
        return Model(lambda key: init, lambda params, x: losses.normalize(product(x, params["A"]))), init
    model = models.create(
        "mobilenet_v3_large", image_shape=tuple(meta.input_shape), dim=meta.dim, dtype="float32", options={}
    )
    return model, unflatten_dict(init, sep=".")


def dot_logits(embeddings: jax.Array, rows: jax.Array) -> jax.Array:
    return jnp.matmul(embeddings, rows.T, precision="highest")


def population_of(meta: SimpleNamespace, arrays: dict[str, np.ndarray]) -> Clients:
    everything = Examples(arrays["features"], arrays["labels"])
    clients = list(arrays["examples"])
    dataset = Dataset(meta.name, "classification", meta.num_classes, everything, clients, everything, UNCHANGED)
    return make_population(dataset)[0]


def prepare(folder: Path, lanes: int, part_size: int, most: int) -> tuple[Callable[..., Any], Any, tuple[Any, ...]]:
    """The compiled program of up to `most` rounds, the state to begin with, and what each round takes besides."""
    meta, arrays, init = read(folder)
    model, encoder = encoder_of(meta, init)
    method = methods.fullsoftmax()
    if meta.num_positives:
        method = methods.fedss(num_negatives=meta.num_negatives, correct_logits=True)
    logits = partial(losses.cosine_logits, scale=meta.logit_scale) if meta.num_positives else dot_logits
    population, mesh = population_of(meta, arrays), parallel.make_mesh()
    part_size, lanes = packing.choose(
        np.asarray(population.num_examples),
        models.count_effort(model, tuple(meta.input_shape)),
        batch_size=meta.batch_size,
        epochs=meta.epochs,
        clients_per_round=meta.clients_per_round,
        devices=mesh.size,
        platform=jax.default_backend(),
        part_size=part_size,
        lanes=lanes,
    )
    training = LocalTraining(
        model=model,
        method=method,
        transform=UNCHANGED,
        learning_rate=meta.learning_rate,
        batch_size=meta.batch_size,
        epochs=meta.epochs,
        logits=logits,
        num_classes=meta.num_classes,
        part_size=part_size,
    )
    layout = Layout(mesh, meta.num_classes, sharded=mesh.size > 1 and not method.every_row)
    options = {"momentum": meta.server_momentum} if meta.server_momentum else {}
    server = make_server(layout, method, learning_rate=meta.server_learning_rate, options=options)
    state = server.start(Theta(encoder, jnp.asarray(init["W"])))
    inputs = (Resident(jnp.asarray(arrays["features"])), arrays["labels"], population, jax.random.key(0))
    inputs = parallel.replicate(mesh, inputs)
    program = make_round(training, server, Packing(meta.clients_per_round, lanes), mesh).several(most, state)
    return program.lower(np.int32(1), state, *inputs).compile(), state, inputs  # type: ignore[attr-defined]


def in_processes(count: int) -> int:
    """This command in so many processes, the first of which prints."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{listener.getsockname()[1]}"
    command = [sys.executable, "-m", "benchmarks.engine", *sys.argv[1:], f"--coordinator={coordinator}"]
    processes = [subprocess.Popen([*command, f"--process={number}"]) for number in range(count)]
    return max(process.wait() for process in processes)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--lanes", type=int, default=0)
    parser.add_argument("--part-size", type=int, default=0)
    parser.add_argument("--rounds-per-dispatch", type=int, default=1)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--coordinator", help="of several processes, where this one meets the others")
    parser.add_argument("--process", type=int, default=0, help="its number")
    flags = parser.parse_args()
    if flags.processes > 1 and not flags.coordinator:
        sys.exit(in_processes(flags.processes))
    cores = sorted(os.sched_getaffinity(0))[: flags.threads or None]
    os.sched_setaffinity(0, cores[flags.process :: flags.processes])
    jax.config.update("jax_num_cpu_devices", flags.devices)
    several = flags.processes > 1
    processes, process = (flags.processes, flags.process) if several else (None, None)
    with hosts.together(flags.coordinator, processes, process, join_seconds=60):
        measure(flags)


def measure(flags: argparse.Namespace) -> None:
    began = time.perf_counter()
    run, state, inputs = prepare(flags.folder, flags.lanes, flags.part_size, flags.rounds_per_dispatch)
    startup = time.perf_counter() - began
    seconds: list[float] = []
    mean_losses: list[float] = []
    while len(seconds) < flags.rounds:
        count = min(flags.rounds_per_dispatch, flags.rounds - len(seconds))
        tick = time.perf_counter()
        state, stats = run(np.int32(count), state, *inputs)
        mean_losses += (np.asarray(stats.loss) / np.asarray(stats.examples))[:count].tolist()
        seconds += [(time.perf_counter() - tick) / count] * count
    print(
        json.dumps(
            {
                "peer": "fedss_jax",
                "version": version("fedss_jax"),
                "startup_seconds": startup,
                "round_seconds": seconds,
                "losses": mean_losses,
                "threads": flags.threads or os.cpu_count(),
            }
        )
    )


if __name__ == "__main__":
    main()
