"""What is held out, and how classes are numbered."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedss_jax.data.assemble import assemble, by_owner
from fedss_jax.data.index import Files, Part
from fedss_jax.data.splits import hold_out, in_order, renumber
from fedss_jax.types import UserError


@pytest.mark.parametrize("seed", range(5))
def test_classification_holds_out_a_share_of_every_class(seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(6), [1, 2, 3, 10, 17, 100]))
    kept, held = hold_out(labels, "classification", 0.2, seed)
    np.testing.assert_array_equal(np.sort(np.concatenate([kept, held])), np.arange(len(labels)))
    assert np.all(np.diff(kept) > 0) and np.all(np.diff(held) > 0)
    counts = np.bincount(labels[held], minlength=6).tolist()
    assert counts[0] == 0 and counts[3] == 2 and counts[5] == 20  # one stays; 10 and 100 divide
    assert counts[1] in (0, 1) and counts[2] in (0, 1) and counts[4] in (3, 4)


@pytest.mark.parametrize("seed", range(5))
def test_small_classes_are_held_out_in_turn(seed):
    held = hold_out(np.repeat(np.arange(1000), 4), "classification", 0.1, seed)[1]
    assert len(held) == 400 and len(np.unique(held // 4)) == 400


@pytest.mark.parametrize("seed", range(5))
def test_retrieval_holds_out_whole_classes(seed):
    labels = np.random.default_rng(seed).integers(0, 50, 400) * 3
    kept, held = hold_out(labels, "retrieval", 0.1, seed)
    assert len(kept) + len(held) == 400
    assert not set(labels[kept]) & set(labels[held])
    assert len(set(labels[held])) == round(0.1 * len(set(labels)))


@pytest.mark.parametrize("task", ["retrieval", "classification"])
def test_the_seed_decides(task):
    labels = np.repeat(np.arange(40), 10)
    held = [hold_out(labels, task, 0.3, seed)[1].tolist() for seed in (0, 0, 1)]
    assert held[0] == held[1] != held[2]


@pytest.mark.parametrize(
    ("labels", "task", "share", "message"),
    [
        ([0, 1, 2], "sorting", 0.2, "data.task is 'sorting'; choose one of retrieval, classification"),
        ([0, 1, 2], "retrieval", 1.0, "the share to hold out is 1.0; it must be between 0 and 1"),
        ([0, 1, 2], "retrieval", 0.1, "0.1 of 3 classes leaves nothing to test on; add"),
        ([0, 0, 0], "retrieval", 0.9, "0.9 of 1 classes leaves nothing to train on; add"),
        ([0, 1, 2], "classification", 0.5, "0.5 of each of 3 classes with 3 pictures in all leaves nothing to test on"),
    ],
)
def test_what_cannot_be_held_out(labels, task, share, message):
    with pytest.raises(UserError, match=message) as error:
        hold_out(np.array(labels), task, share, 0)
    assert "\n" not in str(error.value)


def test_numbers_without_gaps():
    classes, numbers = renumber(np.array([7, 3, 7, 100]))
    assert classes.tolist() == [3, 7, 100] and numbers.tolist() == [1, 0, 1, 2] and numbers.dtype == np.int32


def test_names_are_sorted_and_numbers_by_their_values():
    assert in_order(["b", "10", "a", "9", "b", "009", "2"]) == ["2", "009", "9", "10", "a", "b"]
    assert in_order(["9" * 5000, "1"]) == ["1", "9" * 5000]


def test_a_picture_at_several_clients_is_trained_or_tested_on_but_not_both():
    rows = np.repeat(np.arange(40), 2)  # each at two clients
    part = Part(rows, (rows % 10).astype(np.int32))
    for task in ("classification", "retrieval"):
        for split in ("test", "validation"):
            index = assemble(
                Files(Path(), ()), part, None, task=task, split=split, seed=0, deal=by_owner(np.arange(80) % 2)
            )
            assert not set(index.train.rows) & set(index.test.rows)
            assert len(set(index.test.rows)) == len(index.test.rows) > 0  # and tested on once
            assert all(np.sum(index.train.rows == row) == 2 for row in index.train.rows)
