"""ImageNet-21k: a small copy of its folders."""

from __future__ import annotations

import layouts
import numpy as np
import pytest
from sources import DEAL, names, refuses, with_defaults

from fedss_jax.data import imagenet21k

pytestmark = pytest.mark.usefixtures("cache")
load_synsets = with_defaults(imagenet21k.index, **DEAL, cache_dir="")


def test_synsets(tmp_path):
    root = layouts.class_folders(tmp_path / "in21k", {f"n{i:08}": 4 + i for i in range(6)}, ".JPEG")
    layouts.write(root / "n00000000" / "words.txt", "x")
    (root / "n99999999").mkdir()
    index = load_synsets(root=str(root), num_clients=4, labels_per_client=3)
    assert index.task == "classification" and index.num_classes == 6 and len(index.clients) == 4
    fifth = np.bincount(index.test.labels, minlength=6) - (4 + np.arange(6)) / 5
    assert np.all(np.abs(fifth) < 1)  # up or down to a whole number
    assert len(index.train.rows) + len(index.test.rows) == 39
    for part in ("train", "test"):
        assert [int(name[1:9]) for name in names(index, part)] == getattr(index, part).labels.tolist()
    assert len(index.notes) == 2 and "n99999999" in index.notes[1]
    validation = load_synsets(root=str(root), split="validation")
    assert not set(names(validation, "test")) & set(names(index, "test"))
    assert not set(names(validation)) & set(names(index, "test"))


def test_no_synsets(tmp_path):
    refuses(load_synsets, "data.root is not set; set it to the folder with a folder of pictures", root="")
    layouts.write(tmp_path / "data" / "n01440764.tar", "x")
    refuses(load_synsets, "has no folders; unpack each synset's archive", root=str(tmp_path / "data"))
