"""How far FedSS's averaged update is from FullSoftmax's, for one model and the same data (the paper's section 5.4).

    python -m fedss_jax.analysis.gradient_noise runs/mine

All clients of a round hold the same D of 32 examples and differ only in their negatives N_k. Each makes one step on D,
so that what the server averages is a gradient (times the learning rate, which is left out). The noise is the
expectation of |g_full - g_FedSS| over many D, for phi and for W apart: the mean over parameters (L1), and the length of
the difference over the length of g_full (relative L2). The paper does not say how D is drawn: here at random from all
training examples.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedss_jax import finished, methods
from fedss_jax.losses import cosine_logits, sampled_softmax
from fedss_jax.methods import Method
from fedss_jax.report import figures
from fedss_jax.types import Clients, Model, Theta, UserError

SIZES = [5, 10, 20, 40, 80, 160, 320, 640]  # |N_k|
Logits = Callable[[jax.Array, jax.Array], jax.Array]  # embeddings [B, d], rows of W [S, d] -> [B, S]


class Noise(NamedTuple):
    """Of an averaged update, for phi and for W; numbers [], or [batches] for several D."""

    encoder_l1: Any
    encoder_relative: Any
    class_matrix_l1: Any
    class_matrix_relative: Any


def update(
    model: Model, logits: Logits, method: Method, theta: Theta, images: jax.Array, labels: jax.Array, keys: jax.Array
) -> Theta:
    """The mean of what clients [K keys] with the same examples [B, ...] hand in, per unit of learning rate.

    The mean of gradients is the gradient of the mean loss, and all clients embed the same examples: once is enough.
    """
    num_classes, size = len(theta.class_matrix), len(labels)
    positives = jnp.unique(labels, size=size, fill_value=num_classes)
    count = jnp.sum(positives < num_classes)
    holder = Clients(jnp.zeros((), int), jnp.asarray(size), jnp.arange(size), positives, count)

    def loss(theta: Theta) -> jax.Array:
        embeddings = model.embed(theta.encoder, images)

        def of_client(key: jax.Array) -> jax.Array:
            request = method.request(key, holder, num_classes)
            scores = logits(embeddings, theta.class_matrix[request.classes])
            return jnp.mean(
                sampled_softmax(scores, request.is_target(labels), method.competes(request), request.log_inclusion)
            )

        return jnp.mean(jax.vmap(of_client)(keys))

    return jax.grad(loss)(theta)


def noise(full: Theta, sampled: Theta) -> Noise:
    def flat(tree: object) -> jax.Array:
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])

    numbers = []
    for exact, estimate in zip(full, sampled):
        exact, difference = flat(exact), flat(exact) - flat(estimate)
        numbers += [jnp.mean(jnp.abs(difference)), jnp.linalg.norm(difference) / jnp.linalg.norm(exact)]
    return Noise(*numbers)


def measure(
    model: Model,
    logits: Logits,
    theta: Theta,
    batches: Sequence[tuple[np.ndarray, np.ndarray]],
    *,
    num_negatives: Sequence[int],
    clients: int,
    seed: int = 0,
) -> dict[int, Noise]:
    """For every |N_k| the noise of each batch: images [B, ...] as the encoder sees them, and labels [B]."""
    n = len(theta.class_matrix)
    most = n - max(len(np.unique(labels)) for _, labels in batches)
    if max(num_negatives) > most:
        raise UserError(f"{max(num_negatives)} negatives are too many: batches leave {most} other classes; lower them")
    full = jax.jit(partial(update, model, logits, methods.fullsoftmax()))
    sampled = {
        m: jax.jit(partial(update, model, logits, methods.fedss(num_negatives=m, correct_logits=True)))
        for m in num_negatives
    }
    found: dict[int, list[Noise]] = {m: [] for m in num_negatives}
    for i, batch in enumerate(batches):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), i), clients)
        exact = full(theta, *batch, keys[:1])
        for m in num_negatives:
            found[m].append(noise(exact, sampled[m](theta, *batch, keys)))
    return {m: Noise(*(np.array(numbers) for numbers in zip(*each))) for m, each in found.items()}


def draw_batches(run: finished.Run, count: int, size: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Batches of the run's training examples, without augmentation: all clients must see the same."""
    rng, examples = np.random.default_rng(seed), run.dataset.train
    if size > len(examples):
        raise UserError(f"--size is {size}, but there are only {len(examples)} training examples; lower it")
    drawn = [np.sort(rng.choice(len(examples), size, replace=False)) for _ in range(count)]
    prepare = jax.jit(jax.vmap(run.dataset.transform.test))
    return [(prepare(jnp.asarray(examples.images[rows])), examples.labels[rows]) for rows in drawn]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="gradient_noise", description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("--negatives", type=int, nargs="+", help=f"by default {SIZES}, as far as there are classes")
    parser.add_argument("--clients", type=int, default=32, help="in a round")
    parser.add_argument("--batches", type=int, default=16, help="how many D to take the mean over")
    parser.add_argument("--size", type=int, default=32, help="|D|")
    options = parser.parse_args(arguments)
    run = finished.read(options.run)
    batches = draw_batches(run, options.batches, options.size)
    logits = partial(cosine_logits, scale=run.config["model"]["logit_scale"])
    negatives = options.negatives or [m for m in SIZES if m <= len(run.theta.class_matrix) - options.size]
    found = measure(run.model, logits, run.theta, batches, num_negatives=negatives, clients=options.clients)
    table = [
        {"num_negatives": m} | {name: float(np.mean(values)) for name, values in each._asdict().items()}
        for m, each in found.items()
    ]
    (options.run / "gradient_noise.json").write_text(json.dumps(table, indent=2) + "\n")
    for kind in figures.NOISES:
        figures.save(figures.gradient_noise(table, kind), options.run / f"gradient_noise_{kind}.svg")
    print(f"{'|N_k|':>6} {'phi: L1':>10} {'relative':>9} {'W: L1':>10} {'relative':>9}")
    for line in table:
        m, *numbers = line.values()
        print(f"{m:>6} {numbers[0]:10.2e} {numbers[1]:9.3f} {numbers[2]:10.2e} {numbers[3]:9.3f}")
    print(f"{options.run} has gradient_noise.json, gradient_noise_relative.svg and gradient_noise_l1.svg")


if __name__ == "__main__":
    finished.run_command(main)
