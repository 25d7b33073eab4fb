"""The same work for every simulator, as a folder of plain arrays: who trains when, on what, in which order, from where.

    python -m benchmarks.workloads {lr,cnn,head,mobilenet} FOLDER [--rounds R]

The draws are those of the engine with root key jax.random.key(0), so everybody's losses must agree after any number of
rounds. A folder has `meta.json` (the fields of `Workload`) and, as .npy files,

    features [N, ...] float32     labels [N] int32
    examples [clients, E] int32   the rows of `features` that a client holds
    cohorts  [R, K] int32         who takes part in a round
    orders   [R, K, E] int32      the order in which a client goes through its examples in that round
    init/NAME                     a parameter before the first round; W is the class matrix [n, d]

and where a client sees only some classes, S_k = its own, ascending, and then those it drew,

    classes  [R, K, S] int32      log_inclusion [R, K, S] float32: subtracted from the logits
    targets  [clients, E] int32   where an example finds its class in S_k
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedss_jax import models, sampling

NEGATIVES, SHUFFLE = 0, 1  # as in fedss_jax/client.py
Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Workload:
    """What is in meta.json. Softmax cross-entropy, its mean over a batch; plain SGD at clients.

    A round's pseudo-gradient is the average of theta_t - theta_k weighted with the clients' numbers of examples, where
    a row of W that a client does not see counts as zero; the server takes an SGD step along it.
    """

    name: str
    model: str
    rounds: int
    num_clients: int
    examples_per_client: int
    clients_per_round: int
    batch_size: int  # the last batch of a client may be smaller
    learning_rate: float
    num_classes: int
    dim: int
    input_shape: tuple[int, ...]
    epochs: int = 1
    server_learning_rate: float = 1.0
    server_momentum: float = 0.0
    logit_scale: float = 1.0
    num_positives: int = 0  # a client's own classes, if S_k is not all of them
    num_negatives: int = 0

    @property
    def num_examples(self) -> int:
        return self.num_clients * self.examples_per_client


# Logistic regression as on FLUTE's MNIST; logits are features @ W.T
LR = Workload(
    name="lr",
    model="lr",
    rounds=300,
    num_clients=1000,
    examples_per_client=60,
    clients_per_round=10,
    batch_size=10,
    learning_rate=0.03,
    num_classes=10,
    dim=784,
    input_shape=(784,),
)
# pfl's CIFAR-10: two 3x3 convolutions without padding, 2x2 max-pooling, a layer of 128, and W
CNN = Workload(
    name="cnn",
    model="cnn",
    rounds=20,
    num_clients=1000,
    examples_per_client=50,
    clients_per_round=50,
    batch_size=10,
    learning_rate=0.05,
    num_classes=10,
    dim=128,
    input_shape=(32, 32, 3),
)
# FedSS where all is in the class matrix: embeddings are features @ A, logits are scaled cosines
HEAD = Workload(
    name="head",
    model="head",
    rounds=100,
    num_clients=1000,
    examples_per_client=100,
    clients_per_round=32,
    batch_size=32,
    learning_rate=0.05,
    num_classes=100_000,
    dim=64,
    input_shape=(64,),
    server_momentum=0.9,
    logit_scale=20.0,
    num_positives=20,
    num_negatives=80,
)
# FedSS on Stanford Online Products: MobileNetV3-Large with GroupNorm, but only two clients a round
MOBILENET = Workload(
    name="mobilenet",
    model="mobilenet",
    rounds=4,
    num_clients=8,
    examples_per_client=32,
    clients_per_round=2,
    batch_size=32,
    learning_rate=0.01,
    num_classes=11_318,
    dim=64,
    input_shape=(224, 224, 3),
    logit_scale=20.0,
    num_positives=20,
    num_negatives=80,
)
WORKLOADS = {workload.name: workload for workload in (LR, CNN, HEAD, MOBILENET)}


def own_classes(work: Workload, rng: np.random.Generator, count: int) -> np.ndarray:
    """[clients, count] distinct classes for each client, ascending."""
    drawn = [rng.choice(work.num_classes, count, replace=False) for _ in range(work.num_clients)]
    return np.sort(drawn).astype(np.int32)


def labels_among(work: Workload, rng: np.random.Generator, classes: np.ndarray) -> np.ndarray:
    """[N]: every client's examples shared out evenly among its classes, in a random order."""
    each = np.resize(np.arange(classes.shape[1]), work.examples_per_client)
    shuffled = rng.permuted(np.tile(each, (work.num_clients, 1)), axis=1)
    return np.take_along_axis(classes, shuffled, axis=1).reshape(-1)


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return rng.standard_normal(shape, np.float32) * np.float32(scale)


def layer(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Weights [..., inputs, outputs] of the size that Glorot gives them."""
    places = math.prod(shape[:-2])
    return normal(rng, *shape, scale=math.sqrt(2 / (places * (shape[-2] + shape[-1]))))


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def pictures(rng: np.random.Generator, labels: np.ndarray, size: int, blocks: int, contrast: float) -> np.ndarray:
    """[N, size, size, 3]: noise over a pattern of coloured squares, one pattern a class."""
    kinds, which = np.unique(labels, return_inverse=True)
    patterns = normal(rng, len(kinds), blocks, blocks, 3, scale=contrast)
    images = normal(rng, len(labels), size, size, 3, scale=0.5)
    for start in range(0, len(labels), 1000):
        rows = slice(start, start + 1000)
        images[rows] += patterns[which[rows]].repeat(size // blocks, axis=1).repeat(size // blocks, axis=2)
    return images


def lr(work: Workload, rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    labels = labels_among(work, rng, own_classes(work, rng, 2))
    centres = normal(rng, work.num_classes, work.dim, scale=0.03)
    features = centres[labels] + normal(rng, work.num_examples, work.dim, scale=0.3)
    return {"features": features, "labels": labels}, {"W": normal(rng, work.num_classes, work.dim, scale=0.01)}


def cnn(work: Workload, rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    labels = rng.integers(work.num_classes, size=work.num_examples, dtype=np.int32)
    side = (work.input_shape[0] - 4) // 2
    init = {
        "conv1.kernel": layer(rng, 3, 3, 3, 32),
        "conv1.bias": np.zeros(32, np.float32),
        "conv2.kernel": layer(rng, 3, 3, 32, 64),
        "conv2.bias": np.zeros(64, np.float32),
        "fc.kernel": layer(rng, side * side * 64, work.dim),
        "fc.bias": np.zeros(work.dim, np.float32),
        "W": normal(rng, work.num_classes, work.dim, scale=work.dim**-0.5),
    }
    return {"features": pictures(rng, labels, work.input_shape[0], 8, 0.2), "labels": labels}, init


def head(work: Workload, rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    """W starts as the classes' centres in other coordinates, so that A alone can bring the loss down soon."""
    labels = labels_among(work, rng, own_classes(work, rng, work.num_positives))
    centres = unit(normal(rng, work.num_classes, work.dim))
    features = unit(centres[labels] + normal(rng, work.num_examples, work.dim, scale=0.15))
    rotation = np.linalg.qr(normal(rng, work.dim, work.dim))[0].astype(np.float32)
    init = {"A": normal(rng, work.dim, work.dim, scale=work.dim**-0.5), "W": centres @ rotation}
    return {"features": features, "labels": labels}, init


def mobilenet(work: Workload, rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    """Parameters by their paths in the Flax module, such as block_1.depthwise.norm.scale."""
    labels = labels_among(work, rng, own_classes(work, rng, work.num_positives))
    model = models.create("mobilenet_v3_large", image_shape=work.input_shape, dim=work.dim, dtype="float32", options={})
    paths = jax.tree.leaves_with_path(model.init(jax.random.key(1)))
    init = {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf) for path, leaf in paths}
    init["W"] = unit(normal(rng, work.num_classes, work.dim))
    return {"features": pictures(rng, labels, work.input_shape[0], 14, 1.0), "labels": labels}, init


MAKERS: dict[str, Callable[[Workload, np.random.Generator], tuple[Arrays, Arrays]]] = {
    maker.__name__: maker for maker in (lr, cnn, head, mobilenet)
}


def draws(work: Workload, positives: np.ndarray | None) -> Arrays:
    """Cohorts, orders and (with positives [clients, P]) requests of all rounds, by the engine's keys."""
    root = jax.random.key(0)

    def order(key: jax.Array) -> jax.Array:
        first_epoch = jax.random.fold_in(jax.random.fold_in(key, SHUFFLE), 0)
        return sampling.shuffled(first_epoch, jnp.asarray(work.examples_per_client), work.examples_per_client)

    def request(key: jax.Array, own: jax.Array) -> jax.Array:
        count, width = jnp.asarray(work.num_negatives), work.num_negatives
        key = jax.random.fold_in(key, NEGATIVES)
        drawn = sampling.negatives(key, own, jnp.asarray(own.shape[0]), work.num_classes, count, width)
        return jnp.concatenate([own, drawn])

    def one_round(round: jax.Array) -> dict[str, jax.Array]:
        # The number after the last client's names the draw of the cohort itself.
        key = sampling.client_key(root, round, jnp.asarray(work.num_clients))
        cohort = sampling.cohort(key, work.num_clients, work.clients_per_round)
        keys = jax.vmap(partial(sampling.client_key, root, round))(cohort)
        drawn = {"cohorts": cohort, "orders": jax.vmap(order)(keys)}
        if positives is not None:
            drawn["classes"] = jax.vmap(request)(keys, jnp.asarray(positives)[cohort])
        return drawn

    drawn = jax.jit(lambda: jax.lax.map(one_round, jnp.arange(work.rounds)))()
    arrays = {name: np.asarray(array) for name, array in drawn.items()}
    if positives is not None:
        inclusion = work.num_negatives / (work.num_classes - work.num_positives)
        correction = np.repeat([0.0, math.log(inclusion)], [work.num_positives, work.num_negatives])
        arrays["log_inclusion"] = np.broadcast_to(correction.astype(np.float32), arrays["classes"].shape)
    return arrays


def write(name: str, folder: Path, **changes: Any) -> Path:
    """The named workload with some of its fields changed, such as rounds or examples_per_client."""
    work = dataclasses.replace(WORKLOADS[name], **changes)
    arrays, init = MAKERS[work.model](work, np.random.default_rng(0))
    by_client = arrays["labels"].reshape(work.num_clients, -1)
    arrays["examples"] = np.arange(work.num_examples, dtype=np.int32).reshape(by_client.shape)
    positives = None
    if work.num_positives:
        positives = np.stack([np.unique(labels) for labels in by_client])
        pairs = zip(positives, by_client, strict=True)
        arrays["targets"] = np.stack([np.searchsorted(own, labels) for own, labels in pairs]).astype(np.int32)
    arrays |= draws(work, positives)

    (folder / "init").mkdir(parents=True, exist_ok=True)
    for label, array in arrays.items():
        np.save(folder / f"{label}.npy", array)
    for label, array in init.items():
        np.save(folder / "init" / f"{label}.npy", array)
    (folder / "meta.json").write_text(json.dumps(dataclasses.asdict(work), indent=2) + "\n")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=WORKLOADS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int)
    flags = parser.parse_args()
    changes = {} if flags.rounds is None else {"rounds": flags.rounds}
    print(write(flags.name, flags.folder, **changes))


if __name__ == "__main__":
    main()
