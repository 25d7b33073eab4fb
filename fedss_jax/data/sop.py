"""Stanford Online Products: 120,053 photographs of 22,634 products; half of the products are for training.

Song et al., Deep metric learning via lifted structured feature embedding, CVPR 2016. Read from the archive's own
folder, or from what TensorFlow Datasets prepared of it. Both give the same clients with the same pictures in the same
order: by class, then by content, as TensorFlow Datasets keeps neither names nor order.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedss_jax.data import records
from fedss_jax.data.assemble import assemble, by_label
from fedss_jax.data.cache import cache_folder, load_arrays, progress, try_to_save
from fedss_jax.data.index import BadImage, Files, Index, Part, packed
from fedss_jax.data.records import Records
from fedss_jax.data.tables import integers, read_pictures
from fedss_jax.types import MissingData, UserError

NAME = "stanford_online_products"
TABLES = ("Ebay_train.txt", "Ebay_test.txt")
COLUMNS = ("image_id", "class_id", "super_class_id", "path")


class Found(NamedTuple):
    pictures: Files | Records  # training pictures, then test pictures
    class_ids: np.ndarray  # [N]
    digests: np.ndarray  # [N] of the pictures' bytes; empty where a file is missing
    num_train: int
    notes: list[str]


def index(
    *,
    split: str,
    root: str,
    download: bool,
    num_clients: int,
    labels_per_client: int,
    seed: int,
    cache_dir: str,
) -> Index:
    """Retrieval: the test classes are never trained on.

    root: the unpacked archive, or the folder around it; or a prepared data set, or the folder around such. "" for the
    folder where TensorFlow Datasets keeps all of its data sets.
    download: whether TensorFlow Datasets may get it if it is not there.
    num_clients, labels_per_client: 596 of 20 labels in the paper, then of 99 or 100 pictures. 0 clients for the
    fewest that hold all classes.
    """
    cache = cache_folder(cache_dir)
    archive, prepared = _find(root)
    if archive is None and prepared is None and download:
        prepared = records.prepare(NAME, root)
    if archive is not None:
        found = _read_archive(archive, cache)
    elif prepared is not None:
        found = _read_prepared(prepared, cache)
    else:
        where = f"data.root {root!r}" if root else "TensorFlow Datasets' own folder (data.root is not set)"
        raise MissingData(
            f"Stanford Online Products is not in {where}; set data.root to the unpacked archive (the folder with"
            f" {TABLES[0]}), or to a folder where TensorFlow Datasets prepared it, or set data.download=True where"
            " there is a network, with tensorflow and importlib_resources installed"
        )
    ids, train = found.class_ids, found.num_train
    order = np.lexsort((found.digests, ids, np.arange(len(ids)) >= train))
    return assemble(
        found.pictures.take(order),
        Part(np.arange(train), ids[order[:train]]),
        Part(np.arange(train, len(ids)), ids[order[train:]]),
        task="retrieval",
        split=split,
        seed=seed,
        deal=by_label(num_clients, labels_per_client, seed),
        notes=found.notes,
    )


def _find(root: str) -> tuple[Path | None, Path | None]:
    """The archive's folder and the prepared one, whichever is there."""
    if not root:
        return None, records.find_prepared(NAME, "")
    folder = Path(root).expanduser()
    for archive in (folder, folder / "Stanford_Online_Products"):
        if os.path.isfile(archive / TABLES[0]):
            return archive, None
    if os.path.isfile(folder / "dataset_info.json"):
        return None, folder
    for around in filter(os.path.isdir, (folder / NAME, folder)):
        versions = [version for version in around.glob("*.*.*") if os.path.isfile(version / "dataset_info.json")]
        if versions:
            return None, max(versions, key=lambda version: [int(n) for n in version.name.split(".") if n.isdigit()])
    return None, records.find_prepared(NAME, "")


def _read_archive(folder: Path, cache: Path) -> Found:
    notes: list[str] = []
    tables = [read_pictures(folder / name, COLUMNS, ("path",), "class_id", notes, delimiter=" ") for name in TABLES]
    files = Files(folder, packed([path for table in tables for path in table.columns["path"]]))
    if not any(files.exists(row) for row in range(min(100, len(files)))):
        raise UserError(
            f"none of the first pictures that {TABLES[0]} names is in {folder} (such as {files.name(0)}); unpack all of"
            " the archive there"
        )
    class_ids = np.concatenate([integers(table, "class_id") for table in tables])
    return Found(files, class_ids, _digests(files, cache), len(tables[0]), notes)


def _digests(files: Files, cache: Path) -> np.ndarray:
    """[N] of the files' contents, read once and kept. A file that was missing is looked for again each time."""
    kept = cache / f"digests-{files.fingerprint()}.npz"
    stored = load_arrays(kept)
    digests = np.zeros(len(files), "S32") if stored is None else stored["digests"]
    missing = [row for row in np.flatnonzero(digests == b"").tolist() if stored is None or files.exists(row)]
    for row in progress(missing, "comparing pictures", "picture", cache):
        try:
            digests[row] = records.digest(files.read(row))
        except BadImage:  # counted where pictures are decoded
            continue
    if missing:
        try_to_save(kept, digests=digests)
    return digests


def _read_prepared(directory: Path, cache: Path) -> Found:
    pictures = records.open_records(directory, ["train", "test"], "image")
    columns = pictures.columns(["class_id", "image"], cache)
    return Found(pictures, columns["class_id"], columns["image"], pictures.lengths()[0], [])
