"""Any data set of TensorFlow Datasets that has a picture and a label, by its name."""

from __future__ import annotations

import numpy as np

from fedss_jax.data import records
from fedss_jax.data.assemble import assemble, by_label, by_owner
from fedss_jax.data.cache import cache_folder
from fedss_jax.data.index import Index, Part
from fedss_jax.data.splits import in_order
from fedss_jax.types import MissingData, UserError


def index(
    *,
    split: str,
    dataset: str,
    data_dir: str,
    train_split: str,
    test_split: str,
    image_key: str,
    label_key: str,
    client_key: str,
    task: str,
    num_clients: int,
    labels_per_client: int,
    download: bool,
    seed: int,
    cache_dir: str,
) -> Index:
    """Prepared data sets are read without TensorFlow.

    dataset: such as "cifar10", "name:1.0.0" or "name/config".
    data_dir: where data sets are prepared; "" for the library's own folder.
    train_split, test_split: such as "train" or "train[:80%]"; without a test split, a fifth is held out: of each
    class's pictures, or (retrieval) of the classes.
    client_key: what says whose a record is; "" to deal them out by num_clients and labels_per_client (0 clients for
    the fewest that hold all classes).
    download: whether the library may get the data set if it is not there.
    """
    if not dataset:
        raise UserError("data.dataset is not set; set it to a name of TensorFlow Datasets, such as cifar10")
    directory = records.find_prepared(dataset, data_dir)
    if directory is None and download:
        directory = records.prepare(dataset, data_dir)
    if directory is None:
        where = repr(data_dir) if data_dir else "TensorFlow Datasets' own folder"
        raise MissingData(
            f"data set {dataset!r} is not prepared in {where}; correct data.dataset (name, name/config or name:version)"
            " or data.data_dir, or set data.download=True where there is a network"
        )
    features = dict(records.open_builder(directory).info.features.items())
    for option, key in (("label_key", label_key), ("client_key", client_key)):
        if key or option == "label_key":
            records.check_key(features, option, key)
            if getattr(features[key], "shape", None) != ():
                raise UserError(f"data.{option} is {key!r}, which has more than one value; choose another key")
    if not train_split:
        raise UserError("data.train_split is not set; set it to a split of the data set, such as train")

    pictures = records.open_records(directory, [name for name in (train_split, test_split) if name], image_key)
    columns = pictures.columns([key for key in (label_key, client_key) if key], cache_folder(cache_dir))
    labels, notes = _numbers(columns[label_key], label_key), []
    known = labels >= 0
    if not known.all():  # TensorFlow Datasets' way to say so
        notes.append(f"{np.sum(~known)} records without a label were left out")
    train = np.arange(len(labels)) < pictures.lengths()[0]
    train_rows, test_rows = np.flatnonzero(train & known), np.flatnonzero(~train & known)
    if not len(train_rows) or (test_split and not len(test_rows)):
        raise UserError(f"data set {dataset!r} has no labelled records to {'test' if len(train_rows) else 'train'} on")
    return assemble(
        pictures,
        Part(train_rows, labels[train_rows]),
        Part(test_rows, labels[test_rows]) if test_split else None,
        task=task,
        split=split,
        seed=seed,
        deal=(
            by_owner(columns[client_key][train_rows]) if client_key else by_label(num_clients, labels_per_client, seed)
        ),
        notes=notes,
    )


def _numbers(labels: np.ndarray, key: str) -> np.ndarray:
    """Labels [N] as whole numbers: as they are, or by the order of their names."""
    if labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer):
        return labels
    if labels.ndim == 1 and labels.dtype.kind == "S":
        names = [name.decode(errors="replace") for name in labels.tolist()]
        number = {name: i for i, name in enumerate(in_order(names))}
        return np.array([number[name] for name in names])
    raise UserError(f"data.label_key is {key!r}, which is neither a whole number nor a text; choose another key")
