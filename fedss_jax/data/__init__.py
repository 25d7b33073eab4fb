"""Data sets. A source is a function in a file of its own, entered in SOURCES or PICTURES. Its keyword arguments are its
options: `config.data` must name just these, besides `name` and `residency`.

A source in SOURCES returns a `Dataset`. A source in PICTURES returns an `Index` of picture files, which photos.py
decodes once; it has the options of `photos.load` besides its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fedss_jax.data import arrays, folder, glyphs, imagenet21k, landmarks, photos, sop, standin, tfds_source
from fedss_jax.data.index import Index
from fedss_jax.types import Dataset, UserError

SOURCES: dict[str, Callable[..., Dataset]] = {
    "glyphs": glyphs.load,
    "arrays": arrays.load,
    "standin": standin.load,
}
PICTURES: dict[str, Callable[..., Index]] = {
    "stanford_online_products": sop.index,
    "landmarks_user_160k": landmarks.index,
    "gld23k": landmarks.index,
    "imagenet21k": imagenet21k.index,
    "folder": folder.index,
    "tfds": tfds_source.index,
}


def find(
    name: str, split: str, options: Mapping[str, Any], read: Callable[..., Dataset] = photos.load
) -> Callable[[], Dataset]:
    """Looks for the named data set; what is returned loads it, which may take long.

    split: what it is scored on, "test" or, to tune on, "validation".
    read: how picture files are read: `photos.load`, or `photos.outline` for who does not look at them.
    """
    names = (*SOURCES, *PICTURES)
    if name not in names:
        raise UserError(f"data.name is {name!r}, which does not exist; choose one of {', '.join(names)}")
    given = {"name": name, "split": split, **options}
    readers: list[Callable[..., Any]] = [SOURCES[name]] if name in SOURCES else [PICTURES[name], photos.load]
    accepted = [set(inspect.signature(reader).parameters) for reader in readers]
    wanted = set().union(*accepted) - {"index"}
    for problem, keys in (("has no", set(options) - wanted), ("needs", wanted - set(given))):
        if keys:
            raise UserError(f"data set {name} {problem} option {', '.join(sorted(keys))}")
    chosen = [{key: given[key] for key in keys if key in given} for keys in accepted]

    if name in SOURCES:
        return lambda: checked(SOURCES[name](**chosen[0]))
    index = PICTURES[name](**chosen[0])
    return lambda: checked(read(index, **chosen[1]))


def checked(dataset: Dataset) -> Dataset:
    """The data set, if its labels, images and clients fit together."""
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
    return dataset
