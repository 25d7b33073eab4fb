"""Landmarks-User-160k, and gld23k, its small version: photographs of landmarks, by the people who took them.

Hsu, Qi and Brown, Federated visual classification with real-world data distribution, ECCV 2020. Two tables say which
pictures of the Google Landmarks Dataset v2 belong to whom.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from fedss_jax.data.assemble import assemble, by_owner, data_folder
from fedss_jax.data.index import Files, Index, Part, packed
from fedss_jax.data.splits import renumber
from fedss_jax.data.tables import Table, check_paths, distinct, integers, read_table, without_repeats
from fedss_jax.types import UserError

# Training and test table under all names that they were published with, by the data set's name.
TABLES = {
    "landmarks_user_160k": (
        ("federated_train.csv", "test.csv"),
        ("data_user_dict/gld160k_user_dict_train.csv", "data_user_dict/gld160k_user_dict_test.csv"),
    ),
    "gld23k": (
        ("mini_gld_train_split.csv", "mini_gld_test.csv"),
        ("data_user_dict/gld23k_user_dict_train.csv", "data_user_dict/gld23k_user_dict_test.csv"),
        ("federated_train.csv", "test.csv"),
    ),
}
LOOKED_FOR = 100  # so many pictures are looked for to find out where pictures are


def index(*, name: str, split: str, root: str, images: str, seed: int) -> Index:
    """Classification, with a client for each user.

    root: the folder with the two tables.
    images: the folder with the pictures, <id>.jpg or a/b/c/<id>.jpg for an id that begins with abc; below root, or
    a whole path. "" for root itself, or images or train in it.
    """
    folder = data_folder(root, "the folder with federated_train.csv and test.csv")
    train, test = _read_tables(folder, TABLES[name])
    notes = []
    for table in (train, test):
        check_paths(table, "image_id", flat=True)
    train, repeats = without_repeats(train, ["user_id", "image_id"], "class")
    test, test_repeats = without_repeats(test, ["image_id"], "class")
    if repeats + test_repeats:
        notes.append(f"{repeats + test_repeats} repeated lines of the tables were left out")
    found = np.concatenate([integers(train, "class"), integers(test, "class")])
    classes, labels = renumber(found)
    if classes[-1] != len(classes) - 1:
        notes.append(f"the {len(classes)} classes, {classes[0]} to {classes[-1]}, were numbered from 0 without gaps")

    ids, (train_rows, test_rows) = distinct((train, test), "image_id")
    return assemble(
        _find_pictures(folder, images, ids),
        Part(train_rows, labels[: len(train)]),
        Part(test_rows, labels[len(train) :]),
        task="classification",
        split=split,
        seed=seed,
        deal=by_owner(np.array(train.columns["user_id"])),
        num_classes=len(classes),
        notes=notes,
    )


def _read_tables(folder: Path, names: tuple[tuple[str, str], ...]) -> tuple[Table, Table]:
    for train, test in names:
        if os.path.isfile(folder / train):
            return (
                read_table(folder / train, ("user_id", "image_id", "class")),
                read_table(folder / test, ("image_id", "class")),
            )
    wanted = " or ".join(f"{train} and {test}" for train, test in names)
    raise UserError(
        f"data.root {str(folder)!r} has no {wanted}; the tables (user_id,image_id,class and image_id,class) come with"
        " TensorFlow Federated's gldv2 data set, the pictures are the train set of the Google Landmarks Dataset v2"
    )


def _find_pictures(folder: Path, images: str, ids: list[str]) -> Files:
    """The pictures in the first of the usual places that has most of the first ids."""
    places = [folder / Path(images).expanduser()] if images else [folder, folder / "images", folder / "train"]
    layouts = {
        "<id>.jpg": [f"{image}.jpg" for image in ids],
        "a/b/c/<id>.jpg": [f"{'/'.join(image[:3])}/{image}.jpg" for image in ids],
    }
    best, most = None, 0
    for place in places:
        for names in layouts.values():
            files = Files(place, names)
            count = sum(files.exists(row) for row in range(min(LOOKED_FOR, len(ids))))
            if count > most:
                best, most = files, count
    if best is None:
        raise UserError(
            f"none of the first {min(LOOKED_FOR, len(ids))} pictures (such as {ids[0]}) is in"
            f" {', '.join(map(str, places))}, as {' or '.join(layouts)}; set data.images to the folder that has them"
        )
    return Files(best.root, packed(list(best.names)))
