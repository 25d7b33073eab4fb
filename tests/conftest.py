"""Eight CPU devices for every test, and a small ragged federation to train on."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from starts import QUICKLY

os.environ["JAX_PLATFORMS"] = "cpu"
# Most of a test is compiling small programs, which takes a sixth of the time so.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count=8 {QUICKLY}"

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedss_jax import parallel, server
from fedss_jax.data.augment import UNCHANGED
from fedss_jax.data.partition import make_population
from fedss_jax.losses import cosine_logits, normalize
from fedss_jax.rows import Layout
from fedss_jax.server import Server
from fedss_jax.types import Clients, Dataset, Examples, Model, Resident

FEATURES, DIM, CLASSES = 6, 4, 23
LOGITS = partial(cosine_logits, scale=20.0)


def linear_model() -> Model:
    """f(x) = x A, normalized: small enough to differentiate by hand."""
    return Model(
        init=lambda key: {"A": jax.random.normal(key, (FEATURES, DIM))},
        embed=lambda params, x: normalize(x @ params["A"]),
    )


def make_server(mesh, method, num_classes=CLASSES, *, sharded=True, **options) -> Server:
    """With W over the devices wherever that is possible."""
    layout = Layout(
        mesh,
        num_classes,
        sharded and mesh.size > 1 and method.federated and (method.requests_all or not method.every_row),
    )
    return server.make_server(layout, method, **options)


def ragged_dataset() -> Dataset:
    """Clients of 1 to 15 examples and 1 to 6 classes, classes shared between clients, float features as images."""
    rng = np.random.default_rng(3)
    sizes = [15, 1, 9, 4, 12, 7, 2, 8, 5]
    pools = [rng.choice(CLASSES, rng.integers(1, 7), replace=False) for _ in sizes]
    labels = np.concatenate([rng.choice(pool, size) for pool, size in zip(pools, sizes)])
    clients = np.split(np.arange(len(labels)), np.cumsum(sizes)[:-1])
    images = rng.normal(size=(len(labels), FEATURES)).astype(np.float32)
    examples = Examples(images, labels.astype(np.int32))
    return Dataset("ragged", "classification", CLASSES, examples, clients, examples, UNCHANGED)


@pytest.fixture
def one_device(monkeypatch) -> None:
    """For whole runs in this process: to compile one for eight devices takes several times as long."""
    monkeypatch.setattr(parallel, "make_mesh", partial(parallel.make_mesh, jax.devices()[:1]))


@pytest.fixture
def cache(tmp_path_factory, monkeypatch) -> Path:
    """An empty folder for what data sets keep of what they have found out."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FEDSS_CACHE", str(folder))
    return folder


@pytest.fixture
def dataset() -> Dataset:
    return ragged_dataset()


@pytest.fixture
def population(dataset: Dataset) -> Clients:
    return make_population(dataset)[0]


@pytest.fixture
def store(dataset: Dataset) -> tuple[Resident, jax.Array]:
    return Resident(jnp.asarray(dataset.train.images)), jnp.asarray(dataset.train.labels)
