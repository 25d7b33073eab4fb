"""Data sets of TensorFlow Datasets by their names."""

from __future__ import annotations

import sys
from pathlib import Path

import layouts
import pytest
from sources import DEAL, contents, refuses, with_defaults

from fedss_jax.data import records, tfds_source

pytestmark = pytest.mark.usefixtures("cache")
load_tfds = with_defaults(
    tfds_source.index,
    **DEAL,
    dataset="shapes",
    train_split="train",
    test_split="test",
    image_key="image",
    label_key="label",
    client_key="",
    task="classification",
    download=False,
    cache_dir="",
)


@pytest.fixture
def shapes(tmp_path) -> Path:
    layouts.shapes_prepared(tmp_path / "tfds")
    return tmp_path / "tfds"


@pytest.mark.parametrize("dataset", ["shapes", "shapes:1.0.0", "shapes:1.*.*"])
def test_a_data_set_by_name(shapes, dataset):
    index = load_tfds(data_dir=str(shapes), dataset=dataset)
    number = {layouts.jpeg(i): i for i in range(32)}
    assert index.num_classes == 4 and len(index.clients) == 2
    for part, size in (("train", 24), ("test", 8)):
        found = contents(index, part)
        assert len(found) == size and all(number[data] % 4 == label for data, label in found)
    assert "tensorflow" not in sys.modules


def test_owners_texts_as_labels_and_parts_of_splits(shapes):
    options = dict(data_dir=str(shapes), client_key="user", label_key="title", train_split="train[:50%]", test_split="")
    index = load_tfds(**options)
    assert len(index.pictures) == 12 and len(index.clients) == 3 and index.num_classes == 4
    number = {layouts.jpeg(i): i for i in range(32)}
    for client, held in enumerate(index.clients):
        assert {number[contents(index)[i][0]] % 3 for i in held} <= {client}
    again = load_tfds(**options)
    assert contents(again) == contents(index)


def test_records_are_read_once_for_their_labels(shapes, monkeypatch):
    load_tfds(data_dir=str(shapes))
    monkeypatch.setattr(records, "progress", None)
    load_tfds(data_dir=str(shapes))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "shape"}, "data set 'shape' is not prepared in .*; correct data.dataset"),
        ({"dataset": "shapes:2.0.0"}, "data set 'shapes:2.0.0' is not prepared in"),
        ({"dataset": "a:b:c"}, "data set 'a:b:c' is not prepared in"),
        ({"dataset": ""}, "data.dataset is not set; set it to a name of TensorFlow Datasets, such as cifar10"),
        ({"dataset": "no_such_set", "download": True}, "does not know 'no_such_set': Dataset no_such_set not found"),
        ({"train_split": "training"}, "cannot read split 'training' of .*; its splits: train, test"),
        ({"test_split": "val"}, "cannot read split 'val' .*; its splits: train, test"),
        ({"train_split": ""}, "data.train_split is not set"),
        ({"image_key": "picture"}, "data.image_key is 'picture', which records do not have; choose one of .*image"),
        ({"image_key": "label"}, "data.image_key is 'label', which is no picture; choose one of image"),
        ({"label_key": "class"}, "data.label_key is 'class', which records do not have; choose one of .*label"),
        ({"label_key": ""}, "data.label_key is '', which records do not have"),
        ({"label_key": "box"}, "data.label_key is 'box', which has more than one value"),
        ({"client_key": "owner"}, "data.client_key is 'owner', which records do not have; choose one of .*user"),
        ({"task": "sorting"}, "data.task is 'sorting'"),
        ({"num_clients": 99}, "99 clients of 2 labels need 198 portions"),
    ],
)
def test_bad_options_of_tensorflow_datasets(shapes, options, message):
    refuses(load_tfds, message, **{"data_dir": str(shapes), **options})


def test_records_that_only_tensorflow_reads(shapes):
    info = shapes / "shapes" / "1.0.0" / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    refuses(
        load_tfds, "holds tfrecord files, which only TensorFlow reads; prepare .*array_record", data_dir=str(shapes)
    )
