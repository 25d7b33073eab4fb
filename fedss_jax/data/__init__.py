"""Data sets. A source is a function that returns a `Dataset`; to add one, write it in a file of its own and enter it
in SOURCES. Its keyword arguments are its options: `config.data` must name just these, besides `name`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fedss_jax.data import glyphs
from fedss_jax.types import Dataset, UserError

SOURCES: dict[str, Callable[..., Dataset]] = {"glyphs": glyphs.load}


def load(name: str, split: str, options: Mapping[str, Any]) -> Dataset:
    """The named data set, with `split` ("test", or "validation" to tune on) as what it is scored on."""
    if name not in SOURCES:
        raise UserError(f"data.name is {name!r}, which does not exist; choose one of {', '.join(SOURCES)}")
    wanted = set(inspect.signature(SOURCES[name]).parameters) - {"split"}
    for problem, keys in (("has no", set(options) - wanted), ("needs", wanted - set(options))):
        if keys:
            raise UserError(f"data set {name} {problem} option {', '.join(sorted(keys))}")
    dataset = SOURCES[name](split=split, **options)
    check(dataset)
    return dataset


def check(dataset: Dataset) -> None:
    """Whether labels and images fit together."""
    parts = {"training": dataset.train, "test": dataset.test}
    for part, examples in parts.items():
        if len(examples.images) != len(examples.labels):
            raise UserError(
                f"data set {dataset.name} has {len(examples.images)} {part} images but {len(examples.labels)} labels"
            )
        if len(examples) < 2:
            raise UserError(f"data set {dataset.name} has {len(examples)} {part} examples; check its options")
    n = dataset.num_classes
    labelled = ["training", "test"] if dataset.task == "classification" else ["training"]
    for part in labelled:
        labels = parts[part].labels
        for worst in (labels.min(), labels.max()):
            if not 0 <= worst < n:
                raise UserError(
                    f"data set {dataset.name} has a {part} label {worst}, but its {n} classes are 0 to {n - 1};"
                    " renumber the labels or correct num_classes"
                )
    for held in dataset.clients:
        for worst in (held.min(), held.max()) if len(held) else ():
            if not 0 <= worst < len(dataset.train):
                raise UserError(
                    f"data set {dataset.name} has a client that holds example {worst}, but the examples are 0 to"
                    f" {len(dataset.train) - 1}; correct its partition"
                )
    if not any(len(held) for held in dataset.clients):
        raise UserError(f"data set {dataset.name} has no client with examples; check its partition")
