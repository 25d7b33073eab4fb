"""The embedded data set: characters as classes, font faces as their pictures. Needs no download.

Retrieval follows Stanford Online Products' protocol (test classes are never seen in training, at most five pictures
of a training class), classification follows Landmarks' (test pictures of the training classes, here drawn in font
faces that are held out).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedss_jax.data import fonts
from fedss_jax.data.augment import Jitter, jittered
from fedss_jax.data.partition import equal_clients, natural_clients
from fedss_jax.data.splits import SPLITS, TASKS, check_at_least, check_choice
from fedss_jax.types import Dataset, Examples, UserError

PARTITIONS = ("equal", "block", "script")


def load(
    *,
    split: str,
    task: str,
    partition: str,
    classes_per_client: int,
    train_classes: int,
    validation_classes: int,
    images_per_class: int,
    test_faces: Sequence[str],
    validation_faces: Sequence[str],
    font_dirs: Sequence[str],
    shift: float,
    scale: float,
    slant: float,
    noise: float,
    seed: int,
) -> Dataset:
    """Glyphs as a federated task.

    split: what `Dataset.test` holds: the test part, or a part of its own to tune on.
    partition: clients of `classes_per_client` random classes ("equal"), or one for each Unicode "block" or "script".
    images_per_class: at most so many training pictures of a class; 0 for all.
    """
    for name, value, known in (
        ("data.task", task, TASKS),
        ("data.partition", partition, PARTITIONS),
        ("eval.split", split, SPLITS),
    ):
        check_choice(name, value, known)
    for name, number, least in (
        ("classes_per_client", classes_per_client, 1),
        ("images_per_class", images_per_class, 0),
        ("seed", seed, 0),
        ("shift", shift, 0),
        ("scale", scale, 0),
        ("slant", slant, 0),
        ("noise", noise, 0),
    ):
        check_at_least(name, number, least)
    try:
        glyphs = fonts.load_glyphs(font_dirs)
    except ValueError as error:
        raise UserError(f"data.font_dirs: {error}") from None

    if task == "retrieval":
        sizes = {"train": train_classes, "validation": validation_classes}
        train, test = _split_classes(glyphs, sizes, split, seed)
    else:
        held_out = {"test": test_faces, "validation": validation_faces}
        train, test = _split_faces(glyphs, held_out, split)
    train = _at_most(train, glyphs.labels, images_per_class, seed)

    # Training labels count from 0 without gaps; for retrieval the test labels only need to tell classes apart.
    classes, labels = np.unique(glyphs.labels[train], return_inverse=True)
    names = [glyphs.class_names[label] for label in classes]
    test_labels, test_names = glyphs.labels[test], glyphs.class_names
    if task == "classification":
        test = test[np.isin(test_labels, classes)]
        test_labels, test_names = np.searchsorted(classes, glyphs.labels[test]), tuple(names)

    if partition == "equal":
        clients = equal_clients(labels, classes_per_client, seed)
    else:
        owner = {"block": fonts.block, "script": fonts.script}[partition]
        clients = natural_clients([owner(int(point)) for point in glyphs.code_points[train]])
    images = glyphs.images[..., None]
    return Dataset(
        name="glyphs",
        task=task,
        num_classes=len(classes),
        train=Examples(images[train], labels.astype(np.int32), names),
        clients=clients,
        test=Examples(images[test], test_labels.astype(np.int32), test_names),
        transform=jittered(Jitter(shift, scale, slant, noise)),
    )


def _split_classes(glyphs: fonts.Glyphs, sizes: dict[str, int], split: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the training classes, and of the classes of `split`: all others, or the validation classes."""
    total = len(glyphs.class_names)
    train, validation = sizes["train"], sizes["validation"]
    if train < 1 or validation < 1 or train + validation >= total:
        raise UserError(
            f"data.train_classes + data.validation_classes is {train} + {validation}, but there are {total} classes"
            " and some must remain for the test; lower them, or add fonts with data.font_dirs"
        )
    order = np.random.default_rng(seed).permutation(total)
    parts = np.split(order, [train, train + validation])
    chosen = {"validation": parts[1], "test": parts[2]}[split]
    rows = [np.flatnonzero(np.isin(glyphs.labels, part)) for part in (parts[0], chosen)]
    return rows[0], rows[1]


def _split_faces(glyphs: fonts.Glyphs, held_out: dict[str, Sequence[str]], split: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows drawn in the faces that nobody holds out, and rows drawn in the faces of `split`."""
    for name, faces in held_out.items():
        unknown = sorted(set(faces) - set(glyphs.face_names))
        if unknown or not faces:
            raise UserError(
                f"data.{name}_faces has {', '.join(unknown) or 'no face'}; choose from {', '.join(glyphs.face_names)}"
            )
    face = np.asarray(glyphs.face_names)[glyphs.faces]
    everyone_held_out = [name for faces in held_out.values() for name in faces]
    return (
        np.flatnonzero(~np.isin(face, everyone_held_out)),
        np.flatnonzero(np.isin(face, held_out[split])),
    )


def _at_most(rows: np.ndarray, labels: np.ndarray, limit: int, seed: int) -> np.ndarray:
    """At most `limit` random rows of each class, in their old order; all of them if the limit is 0."""
    if limit == 0:
        return rows
    shuffled = np.random.default_rng(seed).permutation(rows)
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    first = np.searchsorted(labels[by_class], labels[by_class])
    return np.sort(by_class[np.arange(len(by_class)) - first < limit])
