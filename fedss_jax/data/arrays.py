"""Data of one's own as NumPy arrays: small pictures, or features that some other encoder has made.

A part (train or test) is a .npz file or a folder of .npy files, which may be larger than memory:

    images    [N, H, W, C] or [N, H, W] uint8, or instead
    features  [N, F] float
    labels    [N] integers or strings
    clients   [N] integers or strings, who holds each example; may be left out
"""

from __future__ import annotations

import logging
import os
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedss_jax.data import augment
from fedss_jax.data.assemble import assemble, by_label, by_owner, class_names
from fedss_jax.data.index import Files, Part
from fedss_jax.data.splits import check_at_least, renumber
from fedss_jax.data.store import Rows
from fedss_jax.types import Dataset, Examples, Transform, UserError

log = logging.getLogger(__name__)

NAMES = ("images", "features", "labels", "clients")
KINDS = {"i": "integers", "u": "integers", "U": "strings", "S": "byte strings"}
WHAT = "a .npz file or a folder of .npy files with images or features, labels and, if you like, clients"


class Table(NamedTuple):
    """One part as it was read, its arrays checked."""

    inputs: np.ndarray  # [N, H, W, C] uint8 or [N, F] float32
    labels: np.ndarray  # [N]
    clients: np.ndarray | None  # [N]


def load(
    *,
    split: str,
    train: str,
    test: str,
    task: str,
    test_share: float,
    num_clients: int,
    labels_per_client: int,
    shift: int,
    flip: bool,
    seed: int,
) -> Dataset:
    """Arrays as a federated task.

    test: "" to hold out test_share: of each class's examples, or (retrieval) of the classes.
    num_clients, labels_per_client: who holds what, where the data does not say it (0 clients for the fewest that hold
    all classes).
    shift, flip: training pictures are shifted by up to so many pixels, and every other one is mirrored.
    """
    if not 0 < test_share < 1:
        raise UserError(f"data.test_share is {test_share}; it must be between 0 and 1")
    for name, number, least in (
        ("num_clients", num_clients, 0),
        ("labels_per_client", labels_per_client, 0),
        ("shift", shift, 0),
    ):
        check_at_least(name, number, least)
    tables = [_read("train", train)]
    if test:
        tables.append(_read("test", test))
        _check_alike(*tables)
    first, n = tables[0], len(tables[0].labels)
    transform = _transform(first.inputs, shift, flip)

    notes: list[str] = []
    names: list[str] = []
    train_labels, test_labels = first.labels, tables[-1].labels
    if test and task == "retrieval":
        train_labels, test_labels, names = _told_apart(train_labels, test_labels, notes)
    index = assemble(
        Files(Path(), ()),  # no files: rows are those of the arrays, the test array's after the training array's
        Part(np.arange(n), train_labels),
        Part(n + np.arange(len(test_labels)), test_labels) if test else None,
        task=task,
        split=split,
        seed=seed,
        deal=by_label(num_clients, labels_per_client, seed) if first.clients is None else by_owner(first.clients),
        test_share=test_share,
        names=names,
        notes=notes,
    )
    for note in index.notes:
        log.warning("arrays: %s", note)

    from_test = bool(index.test.rows.min() >= n)  # otherwise they were held out of the training array
    test_rows = index.test.rows - n if from_test else index.test.rows
    return Dataset(
        name="arrays",
        task=task,
        num_classes=index.num_classes,
        train=Examples(Rows(first.inputs, index.train.rows), index.train.labels, index.train_names),
        clients=index.clients,
        test=Examples(
            Rows(tables[-1].inputs if from_test else first.inputs, test_rows), index.test.labels, index.test_names
        ),
        transform=transform,
    )


def _transform(inputs: np.ndarray, shift: int, flip: bool) -> Transform:
    if inputs.ndim == 2:
        for option, value, off in (("shift", shift, 0), ("flip", flip, False)):
            if value:
                raise UserError(f"data.{option} is {value}, but the data are features, not pictures; set it to {off}")
        return augment.UNCHANGED
    side = min(inputs.shape[1:3])
    if shift >= side:
        raise UserError(f"data.shift is {shift}, but pictures have {side} pixels a side; lower it")
    shift_and_flip = augment.ShiftFlip(shift, flip)
    return Transform(shift_and_flip.train, shift_and_flip.test) if shift or flip else augment.UNCHANGED


def _told_apart(train: np.ndarray, test: np.ndarray, notes: list[str]) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Labels of both parts as numbers of which none is in both, as retrieval's test classes are its own; and names."""
    shared = len(np.intersect1d(train, test))
    if shared:
        notes.append(f"{shared} labels are in both parts; as the task is retrieval, they count as different classes")
    (classes, train), (others, test) = renumber(train), renumber(test)
    return train, test + len(classes), class_names(np.concatenate([classes, others]))


def _check_alike(train: Table, test: Table) -> None:
    for what, a, b in (
        ("examples", _shape(train.inputs), _shape(test.inputs)),
        ("labels", KINDS[train.labels.dtype.kind], KINDS[test.labels.dtype.kind]),
    ):
        if a != b:
            raise UserError(f"training {what} are {a}, but test {what} are {b}; make them alike")


def _shape(inputs: np.ndarray) -> str:
    return f"{inputs.dtype} of shape [{', '.join(map(str, inputs.shape[1:]))}]"


def _read(part: str, path: str) -> Table:
    """A part's arrays, if they are as they should be; those of a folder stay on disk."""
    where = Path(path).expanduser()
    if not path or not os.path.exists(where):
        problem = f"{path!r}, which does not exist" if path else "not set"
        raise UserError(f"data.{part} is {problem}; set it to {WHAT}")
    arrays = _read_folder(part, where) if os.path.isdir(where) else _read_npz(part, where)
    kinds = [kind for kind in ("images", "features") if kind in arrays]
    if len(kinds) != 1 or "labels" not in arrays:
        found = ", ".join(sorted(arrays)) or "none of them"
        raise UserError(f"data.{part}, {path!r}, must hold labels and either images or features; it holds {found}")
    inputs = _images(path, arrays["images"]) if "images" in kinds else _features(path, arrays["features"])
    names = {name: _names(path, name, arrays[name]) for name in ("labels", "clients") if name in arrays}
    for name, array in names.items():
        if len(array) != len(inputs):
            raise UserError(f"{path!r} has {len(array)} {name}, but {len(inputs)} {kinds[0]}; make them as many")
    return Table(inputs, names["labels"], names.get("clients"))


def _read_folder(part: str, folder: Path) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for name in NAMES:
        file = folder / f"{name}.npy"
        if os.path.isfile(file):  # reading a pipe would never end
            try:
                arrays[name] = np.lib.format.open_memmap(file, mode="r")
            except Exception as error:  # a damaged file raises several kinds
                raise _unreadable(part, str(file), error) from None
    return arrays


def _read_npz(part: str, file: Path) -> dict[str, np.ndarray]:
    if not os.path.isfile(file) or not zipfile.is_zipfile(file):
        raise UserError(f"data.{part} is {str(file)!r}, which is no .npz file; set it to {WHAT}")
    try:
        with zipfile.ZipFile(file) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > (room := os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")):
            raise ValueError(f"unpacked it has {size / 1e9:,.1f} GB, and the memory {room / 1e9:,.1f} GB")
        with np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in NAMES if name in stored}
    except Exception as error:
        raise _unreadable(part, str(file), error) from None


def _unreadable(part: str, file: str, error: Exception) -> UserError:
    what = " ".join(str(error).split())[:150] or type(error).__name__
    if "Object arrays" in what or "Python objects" in what:
        return UserError(f"{file!r} holds Python objects, which are never loaded; save integers, strings or floats")
    return UserError(f"data.{part}: {file!r} cannot be read ({what}); set it to {WHAT}")


def _images(path: str, array: np.ndarray) -> np.ndarray:
    if array.dtype != np.uint8 or array.ndim not in (3, 4) or 0 in array.shape:
        raise UserError(
            f"images in {path!r} are {array.dtype} {list(array.shape)}; they must be uint8 [N, H, W, C] or [N, H, W]"
        )
    return array if array.ndim == 4 else array[..., None]


def _features(path: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind != "f" or array.ndim != 2 or 0 in array.shape:
        raise UserError(f"features in {path!r} are {array.dtype} {list(array.shape)}; they must be float [N, F]")
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused
        array = array.astype(np.float32, copy=False)
    step = max(1, (1 << 22) // array.shape[1])
    for start in range(0, len(array), step):  # in pieces, as the array may be larger than memory
        rows = np.flatnonzero(~np.isfinite(array[start : start + step]).all(axis=1))
        if len(rows):
            raise UserError(
                f"features in {path!r} are not finite float32 numbers in row {start + rows[0]}; mend or remove it"
            )
    return array


def _names(path: str, name: str, array: np.ndarray) -> np.ndarray:
    """Labels or clients [N]."""
    if array.dtype.kind not in KINDS or array.ndim != 1:
        raise UserError(
            f"{name} in {path!r} are {array.dtype} {list(array.shape)}; they must be integers or strings [N]"
        )
    return array.astype(np.int64) if array.dtype.kind in "iu" else np.asarray(array)
