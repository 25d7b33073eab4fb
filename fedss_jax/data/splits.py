"""Parts of a data set that has none: what to test on, what to tune on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedss_jax.types import UserError

TASKS = ("retrieval", "classification")
SPLITS = ("test", "validation")
TEST_SHARE = 0.2  # of data that comes without a test part
VALIDATION_SHARE = 0.1  # of the training part, where the data has no validation part


def check_choice(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise UserError(f"{name} is {value!r}; choose one of {', '.join(known)}")


def check_at_least(name: str, number: float, least: float) -> None:
    if not number >= least:  # so that NaN is refused as well
        raise UserError(f"data.{name} is {number}; it must be at least {least}")


def hold_out(labels: np.ndarray, task: str, share: float, seed: int | Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Places to keep and places to hold out of labels [N], each ascending.

    Retrieval holds out a share of the classes, whole; classification a share of every class's examples. That is
    rounded up for some classes and down for others, so that the share is right in all, also where classes are small;
    at least one example of a class stays.
    """
    check_choice("data.task", task, TASKS)
    if not 0 < share < 1:
        raise UserError(f"the share to hold out is {share}; it must be between 0 and 1")
    rng = np.random.default_rng(seed)
    if task == "retrieval":
        classes = rng.permutation(np.unique(labels))
        held = np.isin(labels, classes[: round(share * len(classes))])
        what = f"{len(classes)} classes"
    else:
        shuffled = rng.permutation(len(labels))
        by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
        sizes = np.unique(labels, return_counts=True)[1]
        due = np.floor(np.cumsum(share * sizes) + rng.random())  # so many in all, up to each class
        wanted = np.minimum(np.diff(due, prepend=0), sizes - 1)
        place = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        held = np.zeros(len(labels), bool)
        held[by_class] = place < np.repeat(wanted, sizes)
        what = f"each of {len(sizes)} classes with {len(labels)} pictures in all"
    if not held.any() or held.all():
        raise UserError(
            f"holding out {share:g} of {what} leaves {'nothing to test' if not held.any() else 'nothing to train'} on;"
            " add pictures or classes, or give the data a test part"
        )
    return np.flatnonzero(~held), np.flatnonzero(held)


def renumber(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct labels in ascending order, and int32 labels that count from 0 without gaps."""
    classes, numbers = np.unique(labels, return_inverse=True)
    return classes, numbers.reshape(-1).astype(np.int32)


def in_order(names: Sequence[str]) -> list[str]:
    """The distinct names, sorted; whole numbers come first, in the order of their values: 2 before 10 before a."""

    def key(name: str) -> tuple[int, int, str, str]:
        if not (name.isascii() and name.isdigit()):
            return 1, 0, "", name
        digits = name.lstrip("0")
        return 0, len(digits), digits, name

    return sorted(set(names), key=key)
