"""What a round costs as the number of classes grows.

    python -m benchmarks.scale [--classes 10000 100000 ...] [--rounds N] [--figure FILE]

FedSS with rows moved as they are asked for, FedSS with all rows moved in every round, and FullSoftmax. A linear encoder
on 64 features, d = 64, 32 of 1,000 clients a round, 100 examples and 20 classes each; with FedSS a client receives 100
classes. Each run is a process of its own, for its peak memory. W, its velocity and a number for each row take
(2 d + 1) * 4 bytes a class.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import results
from fedss_jax import methods, models, packing, parallel
from fedss_jax.client import LocalTraining
from fedss_jax.data.augment import UNCHANGED
from fedss_jax.data.partition import make_population
from fedss_jax.evaluate import top1
from fedss_jax.losses import cosine_logits
from fedss_jax.round import Packing, make_round
from fedss_jax.rows import Layout
from fedss_jax.server import make_server
from fedss_jax.types import Dataset, Examples, Resident, Theta

DIM, CLIENTS, COHORT, EXAMPLES, POSITIVES, NEGATIVES, BATCH = 64, 1000, 32, 100, 20, 80, 32
QUERIES = 1000  # that top-1 is timed on
KINDS = {
    "FedSS": methods.fedss(num_negatives=NEGATIVES, correct_logits=True),
    "FedSS, all rows moved": dataclasses.replace(
        methods.fedss(num_negatives=NEGATIVES, correct_logits=True), every_row=True
    ),
    "FullSoftmax": methods.fullsoftmax(),
}
# FullSoftmax trains a copy of W at every client: beyond this, minutes a round.
MOST_CLASSES = {"FullSoftmax": 100_000}


def bytes_kept(num_classes: int) -> int:
    return (2 * DIM + 1) * 4 * num_classes


def peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def federation(num_classes: int) -> Dataset:
    rng = np.random.default_rng(0)
    own = np.stack([rng.choice(num_classes, POSITIVES, replace=False) for _ in range(CLIENTS)])
    labels = np.repeat(own, EXAMPLES // POSITIVES, axis=1).reshape(-1).astype(np.int32)
    features = rng.standard_normal((len(labels), DIM), np.float32)
    everything = Examples(features, labels)
    clients = list(np.arange(len(labels)).reshape(CLIENTS, EXAMPLES))
    return Dataset("features", "classification", num_classes, everything, clients, everything, UNCHANGED)


def measure(kind: str, num_classes: int, rounds: int) -> dict[str, Any]:
    """In this process."""
    method, mesh = KINDS[kind], parallel.make_mesh()
    dataset = federation(num_classes)
    population, _ = make_population(dataset)
    model = models.create("linear", image_shape=(DIM,), dim=DIM, dtype="float32", options={})
    part_size, lanes = packing.choose(
        np.asarray(population.num_examples),
        models.count_effort(model, (DIM,)),
        batch_size=BATCH,
        epochs=1,
        clients_per_round=COHORT,
        devices=mesh.size,
        platform=jax.default_backend(),
        lanes=1 if kind == "FullSoftmax" else 0,  # copies of W at a time
    )
    logits = partial(cosine_logits, scale=20.0)
    training = LocalTraining(model, method, UNCHANGED, 0.05, BATCH, 1, logits, num_classes, part_size)
    server = make_server(Layout(mesh, num_classes, sharded=mesh.size > 1 and not method.every_row), method)
    state = server.start(Theta(model.init(jax.random.key(0)), server.rows.layout.init(jax.random.key(1), DIM, 0.5)))
    program: Any = make_round(training, server, Packing(COHORT, lanes), mesh).several(1, state)
    inputs = (
        Resident(jnp.asarray(dataset.train.images)),
        jnp.asarray(dataset.train.labels),
        population,
        jax.random.key(2),
    )
    run = program.lower(jnp.int32(1), state, *inputs).compile()
    seconds: list[float] = []
    began = time.perf_counter()
    while len(seconds) < 5 or (len(seconds) < rounds and time.perf_counter() - began < 60):
        tick = time.perf_counter()
        state, stats = run(jnp.int32(1), state, *inputs)
        loss = float(stats.loss[0])
        seconds.append(time.perf_counter() - tick)
        assert np.isfinite(loss)
    peak = peak_bytes()
    predict = top1.make_predict(server.rows)
    queries = np.asarray(model.embed(state.encoder, jnp.asarray(dataset.train.images[:QUERIES])))
    jax.block_until_ready(predict(queries, state.rows, state.steps))
    tick = time.perf_counter()
    jax.block_until_ready(predict(queries, state.rows, state.steps))
    return {
        "kind": kind,
        "classes": num_classes,
        "seconds_a_round": float(np.median(seconds[2:])),
        "rounds": len(seconds),
        "peak_bytes": peak,
        "bytes_kept": bytes_kept(num_classes),
        "top1_seconds": time.perf_counter() - tick,
    }


def run_apart(kind: str, num_classes: int, rounds: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.scale", "--one", kind, "--classes", str(num_classes)]
    done = subprocess.run([*command, "--rounds", str(rounds)], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def draw(found: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for kind, marker in zip(KINDS, "os^"):
        rows = [row for row in found if row["kind"] == kind]
        classes = [row["classes"] for row in rows]
        left.loglog(classes, [1e3 * row["seconds_a_round"] for row in rows], marker=marker, label=kind)
        right.loglog(classes, [row["peak_bytes"] / 1e9 for row in rows], marker=marker, label=kind)
    sizes = sorted({row["classes"] for row in found})
    right.loglog(sizes, [bytes_kept(n) / 1e9 for n in sizes], "k:", label="W, its velocity, a number a row")
    left.set(xlabel="classes", ylabel="ms a round", title="Time of a round")
    right.set(xlabel="classes", ylabel="GB", title="Peak memory of the process")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = results.parser(__doc__)
    parser.add_argument("--classes", nargs="+", type=int, default=[10**4, 10**5, 10**6, 10**7])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--figure", type=Path, help="a picture of it")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.one:
        print(json.dumps(measure(flags.one, flags.classes[0], flags.rounds)))
        return
    found, rows = [], []
    for kind in KINDS:
        first: dict[str, Any] = {}
        for num_classes in flags.classes:
            if num_classes > MOST_CLASSES.get(kind, num_classes):
                continue
            one = run_apart(kind, num_classes, flags.rounds)
            first = first or one
            found.append(one)
            beyond = one["peak_bytes"] - first["peak_bytes"]
            rows.append(
                (
                    kind,
                    f"{num_classes:,}",
                    f"{1e3 * one['seconds_a_round']:,.2f}",
                    f"{one['seconds_a_round'] / first['seconds_a_round']:.2f}",
                    f"{one['peak_bytes'] / 1e9:.2f}",
                    f"{beyond / (one['bytes_kept'] - first['bytes_kept']):.2f}" if beyond > 0 else "-",
                    f"{one['top1_seconds']:.2f}",
                )
            )
            print(" ".join(rows[-1]), file=sys.stderr, flush=True)
    header = ("", "classes", "ms a round", "times the first", "peak GB", "growth / kept", f"top-1 of {QUERIES:,}, s")
    print(results.table(header, rows))
    results.save(flags.out, "scale", found)
    if flags.figure:
        draw(found, flags.figure)


if __name__ == "__main__":
    main()
