"""Scores an encoder that is there already, and leaves its embeddings for other tools: --mode=eval."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_collections
import numpy as np

from fedss_jax import parallel, simulation, weights
from fedss_jax.finished import restore
from fedss_jax.metrics import say, writable, write_json
from fedss_jax.report.summary import NAMES
from fedss_jax.simulation import Setup
from fedss_jax.types import Examples, ServerState, Theta, UserError

FILES = ("eval.json", "embeddings.npy", "labels.npy", "names.json")


def score_run(workdir: str, which: str, into: str) -> dict[str, float]:
    """Of a checkpoint of a run, last, best or that of a round: what `score` gives of an encoder."""
    setup, found = restore(Path(workdir), which)
    about = {"run": workdir, "round": found.round}
    return _score(setup, found.state, about, Path(into or Path(workdir) / "eval"), has_classes=True)


def score(config: ml_collections.ConfigDict, workdir: str) -> dict[str, float]:
    """Of the encoder that config.init_from names: scores, and the test examples' embeddings [N, d] and labels [N].

    Top-1 needs the class matrix: a run leaves it as class_matrix.npy beside its encoder.
    """
    if not config.init_from:
        raise UserError(
            "init_from is not set; name an encoder to score with --config.init_from=RUN/encoder.safetensors, or leave"
            " out --config to score a checkpoint of the run in --workdir"
        )
    setup = simulation.prepare(config, parallel.make_mesh())
    config, dataset = setup.config, setup.dataset
    encoder, note = weights.load(config.init_from, setup.model.init(setup.init_key))
    if note:
        raise UserError(f"{config.init_from} is not the whole encoder: {note}; name one that a run has left")
    learnt = read_class_matrix(setup)
    rows = jnp.zeros((dataset.num_classes, config.model.dim)) if learnt is None else jnp.asarray(learnt)
    state = setup.server.start(Theta(encoder, rows))
    return _score(setup, state, {"init_from": config.init_from}, Path(workdir), has_classes=learnt is not None)


def _score(
    setup: Setup, state: ServerState, about: Mapping[str, Any], folder: Path, *, has_classes: bool
) -> dict[str, float]:
    scores = setup.evaluate()(state)
    if not has_classes:
        scores = {name: value for name, value in scores.items() if not name.endswith("top1")}
    test = setup.dataset.test
    embeddings = setup.embed(state.encoder, test.images, np.arange(len(test)))
    write(folder, {**about, "split": setup.config.eval.split, **scores}, embeddings, test)
    for name, value in scores.items():
        say(f"{NAMES.get(name, name):20} {value:.4f}")
    say(f"{folder} has {', '.join(FILES)}: scores, and {len(embeddings):,} embeddings with their classes")
    return scores


def read_class_matrix(setup: Setup) -> np.ndarray | None:
    """W [n, d] of the run that the encoder is from; None if retrieval is all that can be scored."""
    dataset, path = setup.dataset, Path(setup.config.init_from).with_name("class_matrix.npy")
    expected = (dataset.num_classes, setup.config.model.dim)
    found = weights.read_array(path) if path.exists() else None
    if found is not None and found.shape == expected:
        return found
    if dataset.task == "classification":
        problem = "is not there" if found is None else f"is {list(found.shape)}, but here W is {list(expected)}"
        raise UserError(f"{path} {problem}; classification needs the run's own, with the config that it was run with")
    return None


def write(folder: Path, scores: dict[str, Any], embeddings: np.ndarray, test: Examples) -> None:
    write_json(folder, "eval.json", scores)
    with writable(folder):
        np.save(folder / "embeddings.npy", embeddings)
        np.save(folder / "labels.npy", test.labels)
        classes = np.unique(test.labels).tolist()
        names = {label: test.name(label) for label in classes}
        (folder / "names.json").write_text(json.dumps(names, ensure_ascii=False, indent=0) + "\n")
