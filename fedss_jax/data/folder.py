"""Pictures of one's own: in a folder for each class, or named in a table with who holds what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedss_jax.data.assemble import assemble, by_label, by_owner, data_folder
from fedss_jax.data.cache import cache_folder
from fedss_jax.data.index import Files, Index, Part, packed
from fedss_jax.data.listing import EXTENSIONS, list_pictures, listing_notes, sub_folders
from fedss_jax.data.splits import in_order
from fedss_jax.data.tables import distinct, read_pictures
from fedss_jax.types import UserError

LAYOUTS = (
    "a folder for each class with its pictures; or with folders train and test (or val) that hold such; or with the"
    " pictures that the table data.csv names"
)
PARTS = ("test", "val", "validation")  # besides train


def index(
    *,
    split: str,
    root: str,
    csv: str,
    test_csv: str,
    task: str,
    num_clients: int,
    labels_per_client: int,
    test_share: float,
    seed: int,
    cache_dir: str,
) -> Index:
    """Classes are numbered in the order of their names, numbers by their values.

    root: root/class/picture; or root/train/class/picture, then also root/test (or val, validation)/class/picture. If
    there are both test and val, val is what eval.split=validation is scored on.
    csv: a table below root with the header client,image,label; images are paths below root. A client is then whoever
    the table names, otherwise num_clients and labels_per_client say who holds what (0 clients for the fewest that hold
    all classes).
    test_csv: a table with the header image,label.
    test_share: without a test part, so much is held out: of each class's pictures, or (retrieval) of the classes.
    """
    folder = data_folder(root, f"a folder with {LAYOUTS}")
    if not 0 < test_share < 1:
        raise UserError(f"data.test_share is {test_share}; it must be between 0 and 1")
    if test_csv and not csv:
        raise UserError(f"data.test_csv is {test_csv!r}, but data.csv is not set; set it to the training table")
    if csv:
        return _from_tables(folder, csv, test_csv, task=task, split=split, seed=seed, test_share=test_share)
    return _from_folders(
        folder,
        cache_folder(cache_dir),
        task=task,
        split=split,
        seed=seed,
        test_share=test_share,
        deal=by_label(num_clients, labels_per_client, seed),
    )


def _from_folders(root: Path, cache: Path, **options: Any) -> Index:
    notes: list[str] = []
    parts = _part_folders(root, notes)
    folders = [folder for part in parts.values() for folder in part]
    listing = list_pictures(root, folders, cache)
    names = [folder.rpartition("/")[2] for folder in folders]
    classes = in_order(names)
    number = {name: i for i, name in enumerate(classes)}
    labels = np.repeat(np.array([number[name] for name in names], np.int32), listing.pictures)
    notes += listing_notes(folders, listing)

    # Pictures are listed part by part: where each part ends follows from the numbers of folders and of their pictures.
    last = np.cumsum([len(part) for part in parts.values()])
    ends = np.concatenate([[0], np.cumsum(listing.pictures)])[last]
    rows = dict(zip(parts, np.split(np.arange(len(labels)), ends[:-1])))
    for part in parts:
        if not len(rows[part]):
            raise UserError(f"{root / part} has no pictures ({' '.join(EXTENSIONS)}) in folders for classes; add some")
    train, *others = [Part(rows[part], labels[rows[part]]) for part in parts]
    # One other part is to test on, whatever its name; of two, the second is to tune on.
    test, validation = (*others, None, None)[:2]
    return assemble(Files(root, listing.names), train, test, validation, names=classes, notes=notes, **options)


def _part_folders(root: Path, notes: list[str]) -> dict[str, list[str]]:
    """Class folders of the parts that are there: training first, then what to test on, then what to tune on."""
    top = sub_folders(root)
    if not top:
        raise UserError(f"data.root {str(root)!r} has no folders in it; it must be a folder with {LAYOUTS}")
    parts = ["train", *(name for name in PARTS if name in top)][:3]
    if "train" not in top or (len(parts) == 1 and len(top) > 1):
        return {".": top}
    if unread := sorted(set(top) - set(parts)):
        notes.append(f"folders beside {' and '.join(parts)} were not read: {', '.join(unread[:3])}")
    return {part: sub_folders(root, part) for part in parts}


def _from_tables(root: Path, csv: str, test_csv: str, **options: Any) -> Index:
    notes: list[str] = []
    train = read_pictures(
        root / Path(csv).expanduser(), ("client", "image", "label"), ("client", "image"), "label", notes
    )
    tables = [train]
    if test_csv:
        tables.append(read_pictures(root / Path(test_csv).expanduser(), ("image", "label"), ("image",), "label", notes))

    label_names = [label for table in tables for label in table.columns["label"]]
    classes = in_order(label_names)
    number = {name: i for i, name in enumerate(classes)}
    images, rows = distinct(tables, "image")
    parts = [
        Part(own, np.array([number[label] for label in table.columns["label"]], np.int32))
        for own, table in zip(rows, tables, strict=True)
    ]
    files = Files(root, packed(images))
    looked_for = min(100, len(files))
    if not any(files.exists(row) for row in range(looked_for)):
        raise UserError(
            f"none of the first {looked_for} images of {train.path} is below data.root {str(root)!r} (such as"
            f" {files.name(0)}); images are paths below it"
        )
    deal = by_owner(np.array(train.columns["client"]))
    test = parts[1] if test_csv else None
    return assemble(files, parts[0], test, deal=deal, names=classes, notes=notes, **options)
