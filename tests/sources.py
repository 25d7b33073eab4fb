"""What tests of every source of pictures share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedss_jax.data.index import Index
from fedss_jax.types import UserError

DEAL: dict[str, Any] = dict(num_clients=0, labels_per_client=2, seed=0, split="test")


def with_defaults(index: Callable[..., Index], **defaults: Any) -> Callable[..., Index]:
    """A source's index(), which is checked for what must hold for every source."""

    def call(**options: Any) -> Index:
        found = index(**(defaults | options))
        check(found)
        return found

    return call


def check(index: Index) -> None:
    """What must hold for every source."""
    for part in (index.train, index.test):
        assert part.labels.dtype == np.int32 and len(part.rows) == len(part.labels)
        assert part.rows.min() >= 0 and part.rows.max() < len(index.pictures)
    assert set(index.train.labels) <= set(range(index.num_classes))
    if index.task == "classification":
        assert set(index.test.labels) <= set(range(index.num_classes))
    assert sorted(np.concatenate(index.clients)) == list(range(len(index.train.labels)))
    assert all("\n" not in note for note in index.notes)


def contents(index: Index, part: str = "train") -> list[tuple[bytes, int]]:
    """Pictures and labels of a part, in order."""
    rows, labels = getattr(index, part)
    return [(index.pictures.read(int(row)), int(label)) for row, label in zip(rows, labels)]


def names(index: Index, part: str = "train") -> list[str]:
    return [index.pictures.name(int(row)) for row in getattr(index, part).rows]


def refuses(load, message: str, **options) -> None:
    """The error has one line, and says so."""
    with pytest.raises(UserError, match=message) as error:
        load(**options)
    assert "\n" not in str(error.value)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
