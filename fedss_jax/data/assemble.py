"""From labelled pictures to a federated task: the steps that all sources of pictures share."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from fedss_jax.data.index import Index, Part, Pictures
from fedss_jax.data.partition import dealt_clients, natural_clients
from fedss_jax.data.splits import (
    SPLITS,
    TASKS,
    TEST_SHARE,
    VALIDATION_SHARE,
    check_at_least,
    check_choice,
    hold_out,
    renumber,
)
from fedss_jax.types import MissingData, UserError

# Who holds what. From the places of the training part that are left to train on, and their labels (each [N]), to the
# numbers, 0 .. N - 1, that each client holds.
Deal = Callable[[np.ndarray, np.ndarray], Sequence[np.ndarray]]


def by_label(num_clients: int, labels_per_client: int, seed: int) -> Deal:
    """Clients of so many labels each, as `dealt_clients` makes them."""
    return lambda kept, labels: dealt_clients(labels, num_clients, labels_per_client, seed)


def by_owner(owners: np.ndarray) -> Deal:
    """A client for each owner; owners [N] of the whole training part."""
    return lambda kept, labels: natural_clients(owners[kept])


def data_folder(root: str, what: str) -> Path:
    """data.root as a path, if there is such a folder; `what` says what to put there."""
    folder = Path(root).expanduser()
    if not root or not os.path.isdir(folder):
        problem = f"{root!r}, which is no folder" if root else "not set"
        raise MissingData(f"data.root is {problem}; set it to {what}")
    return folder


def assemble(
    pictures: Pictures,
    train: Part,
    test: Part | None,
    validation: Part | None = None,
    *,
    task: str,
    split: str,
    seed: int,
    deal: Deal,
    test_share: float = TEST_SHARE,
    num_classes: int | None = None,
    names: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Index:
    """Splits where the data has no part of its own, numbers the classes, and deals the training part out.

    test, validation: None to hold out a part of `train`. Only the part that `split` names is used; with "validation",
    what would be tested on is left alone, and is not trained on either.
    num_classes: labels already count from 0 to this. Otherwise the training classes are numbered, and a classifier is
    not tested on others.
    names: what the labels 0, 1, ... stand for; where it is empty, a class is called by its label.
    """
    check_choice("eval.split", split, SPLITS)
    check_choice("data.task", task, TASKS)
    check_at_least("seed", seed, 0)
    notes = list(notes)
    if test is not None and (both := len(np.intersect1d(train.rows, test.rows))):
        notes.append(f"{both} pictures are in both the training and the test part")
    kept = np.arange(len(train.labels))
    pick = partial(_pick, train)
    if test is None:
        kept, held = _hold_out(train, task, test_share, seed)
        test = pick(held)
    if split == "validation" and validation is not None:
        test = validation
    elif split == "validation":
        inner, held = _hold_out(pick(kept), task, VALIDATION_SHARE, (seed, 1))
        kept, test = kept[inner], pick(kept[held])

    train = pick(kept)
    train_names = test_names = names
    if num_classes is None:
        classes, labels = renumber(train.labels)
        num_classes, train = len(classes), Part(train.rows, labels)
        test, own = _unknown(test, classes) if task == "retrieval" else _known(test, classes, notes)
        train_names, test_names = class_names(classes, names), class_names(own, names)
    return Index(
        task=task,
        num_classes=num_classes,
        pictures=pictures,
        train=Part(train.rows, train.labels.astype(np.int32)),
        clients=deal(kept, train.labels),
        test=Part(test.rows, test.labels.astype(np.int32)),
        train_names=train_names,
        test_names=test_names,
        notes=tuple(notes),
    )


def _hold_out(part: Part, task: str, share: float, seed: int | Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Places to keep and to hold out, by picture: one that several clients have is trained or tested on, not both, and
    is tested on once.
    """
    _, first, picture = np.unique(part.rows, return_index=True, return_inverse=True)
    kept, held = hold_out(part.labels[first], task, share, seed)
    return np.flatnonzero(np.isin(picture, kept)), np.sort(first[held])


def _pick(part: Part, places: np.ndarray) -> Part:
    return Part(part.rows[places], part.labels[places])


def class_names(classes: np.ndarray, names: Sequence[str] = ()) -> list[str]:
    """What labels [n] are called: each its own name, or its entry in `names`."""
    if names:
        return [names[label] for label in classes.tolist()]
    return [label.decode(errors="replace") if isinstance(label, bytes) else str(label) for label in classes.tolist()]


def _known(test: Part, classes: np.ndarray, notes: list[str]) -> tuple[Part, np.ndarray]:
    """The test examples of these classes, ascending [n], with labels that number them; and the classes."""
    known = np.isin(test.labels, classes)
    if not known.any():
        raise UserError(
            f"none of the {len(known)} test examples is of one of the {len(classes)} training classes; give both parts"
            " the same class names, or set data.task=retrieval"
        )
    if not known.all():
        strange = len(np.unique(test.labels[~known]))
        notes.append(
            f"{np.sum(~known)} test examples of {strange} classes that training lacks were left out of {len(known)}"
        )
    return Part(test.rows[known], np.searchsorted(classes, test.labels[known])), classes


def _unknown(test: Part, classes: np.ndarray) -> tuple[Part, np.ndarray]:
    """The test examples, with numbers for labels, and their classes. None may be of these: retrieval is about unseen
    classes.
    """
    own, labels = renumber(test.labels)
    shared = np.intersect1d(classes, own)
    if len(shared):
        raise UserError(
            f"{len(shared)} of the {len(own)} test classes are training classes too, but retrieval tests on classes"
            " that nobody has seen; correct the parts"
        )
    return Part(test.rows, labels), own
