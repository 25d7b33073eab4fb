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
    if not len(dataset.test):
        raise UserError(f"data set {name} has no {split} examples; check its options")
    return dataset
