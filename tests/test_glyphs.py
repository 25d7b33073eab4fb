"""Splits and partitions of the embedded data."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from ml_collections import ConfigDict

from configs import glyphs as config_file
from fedss_jax import data
from fedss_jax.data import fonts
from fedss_jax.data.partition import equal_clients, make_population, natural_clients
from fedss_jax.types import Dataset, Examples, UserError


def load(variant="", split="test", **changes) -> Dataset:
    options: ConfigDict = config_file.get_config(variant).data
    options = {k: v for k, v in options.to_dict().items() if k not in ("name", "residency")} | changes
    return data.find("glyphs", split, options)()


def rows(images: np.ndarray) -> set[bytes]:
    return {image.tobytes() for image in images}


def test_retrieval_has_disjoint_classes_and_at_most_five_pictures_of_each():
    dataset, validation = load(), load(split="validation")
    sizes = np.bincount(dataset.train.labels)
    assert dataset.num_classes == len(sizes) == 2000 and sizes.min() >= 4 and sizes.max() == 5
    # No bitmap is in two classes, so disjoint classes have disjoint pictures.
    parts = [rows(dataset.train.images), rows(dataset.test.images), rows(validation.test.images)]
    assert not (parts[0] & parts[1] or parts[0] & parts[2] or parts[1] & parts[2])
    assert len(np.unique(validation.test.labels)) == 500
    total = len(fonts.load_glyphs().class_names)
    assert len(np.unique(dataset.test.labels)) == total - 2500
    np.testing.assert_array_equal(dataset.train.images, validation.train.images)
    trained, tested = ({part.name(label) for label in part.labels} for part in (dataset.train, dataset.test))
    assert len(trained) == 2000 and len(tested) == total - 2500 and not trained & tested


def test_classification_tests_known_classes_in_unknown_faces():
    dataset, glyphs = load("classification"), fonts.load_glyphs()
    assert set(dataset.test.labels) <= set(range(dataset.num_classes)) == set(dataset.train.labels)
    face = {image.tobytes(): glyphs.face_names[f] for image, f in zip(glyphs.images, glyphs.faces)}
    held_out = set(config_file.get_config().data.test_faces)
    assert {face[row] for row in rows(dataset.test.images)} == held_out
    also_held_out = set(config_file.get_config().data.validation_faces)
    assert not {face[row] for row in rows(dataset.train.images)} & (held_out | also_held_out)
    # A test picture's label is the class of the training pictures of that character.
    label = {image.tobytes(): int(c) for image, c in zip(glyphs.images, glyphs.labels)}
    trained = {int(new): label[image.tobytes()] for image, new in zip(dataset.train.images, dataset.train.labels)}
    assert all(
        trained[int(new)] == label[image.tobytes()] for image, new in zip(dataset.test.images, dataset.test.labels)
    )
    assert all(dataset.test.name(new) == glyphs.class_names[old] for new, old in trained.items())


def test_equal_clients_have_twenty_classes_and_share_none():
    dataset = load()
    held = [set(dataset.train.labels[rows]) for rows in dataset.clients]
    assert len(held) == 100 and {len(classes) for classes in held} == {20}
    assert len(set.union(*held)) == 2000
    assert sorted(np.concatenate(dataset.clients)) == list(range(len(dataset.train)))


@pytest.mark.parametrize(("variant", "owner", "least"), [("block", fonts.block, 40), ("script", fonts.script, 10)])
def test_natural_clients_are_blocks_or_scripts_of_all_sizes(variant, owner, least):
    dataset, glyphs = load(variant), fonts.load_glyphs()
    point = {image.tobytes(): int(p) for image, p in zip(glyphs.images, glyphs.code_points)}
    owners = [{owner(point[dataset.train.images[i].tobytes()]) for i in rows} for rows in dataset.clients]
    assert all(len(names) == 1 for names in owners)
    assert len(set.union(*owners)) == len(owners) >= least
    sizes = [len(rows) for rows in dataset.clients]
    assert max(sizes) > 20 * min(sizes)


def test_partitions_by_hand():
    labels = np.array([0, 1, 2, 0, 1, 2, 3])
    clients = equal_clients(labels, 2, seed=0)
    assert sorted(len(set(labels[c])) for c in clients) == [2, 2]
    assert sorted(np.concatenate(clients)) == list(range(7))
    assert [c.tolist() for c in natural_clients(["b", "a", "b", "c"])] == [[1], [0, 2], [3]]


def tiny(labels, clients, n=3) -> Dataset:
    examples = Examples(np.zeros((len(labels), 2, 2, 1), np.uint8), np.array(labels, np.int32))
    return Dataset("tiny", "retrieval", n, examples, clients, examples, lambda key, image: image)


def test_population_by_hand():
    clients, empty = make_population(tiny([2, 0, 2, 1], [np.array([0, 2]), np.array([], int), np.array([1, 3, 0])]))
    assert empty == 1
    assert clients.num_examples.tolist() == [2, 3]
    assert clients.examples.tolist() == [[0, 2, 0], [1, 3, 0]]
    assert clients.positives.tolist() == [[2, 3, 3], [0, 1, 2]]
    assert clients.num_positives.tolist() == [1, 3]


@pytest.mark.parametrize(
    ("labels", "clients", "message"),
    [
        ([0, 3], [np.array([0])], "training label 3, but its 3 classes are 0 to 2"),
        ([0, -1], [np.array([0])], "training label -1"),
        ([0, 1], [np.array([], int)], "no client with examples"),
        ([0, 1], [np.array([0, 2])], "holds example 2, but the examples are 0 to 1"),
        ([0], [np.array([0])], "has 1 training examples"),
    ],
)
def test_bad_data_is_refused(labels, clients, message):
    with pytest.raises(UserError, match=message):
        data.checked(tiny(labels, clients))


def test_test_labels_must_be_known_classes_where_they_are_classified():
    good = tiny([0, 1], [np.array([0, 1])])
    strange = Examples(good.train.images, np.array([1, 7], np.int32))
    data.checked(dataclasses.replace(good, test=strange))  # retrieval: test classes are their own
    with pytest.raises(UserError, match="test label 7, but its 3 classes are 0 to 2"):
        data.checked(dataclasses.replace(good, task="classification", test=strange))
    short = Examples(good.train.images[:1], good.train.labels)
    with pytest.raises(UserError, match="1 test images but 2 labels"):
        data.checked(dataclasses.replace(good, test=short))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "regression"}, r"data.task is 'regression'; choose one of retrieval, classification"),
        ({"partition": "font"}, "data.partition is 'font'"),
        ({"train_classes": 4000}, r"4000 \+ 500, but there are 40"),
        ({"font_dirs": ("/nowhere",)}, "font_dirs.*nowhere"),
        ({"task": "classification", "test_faces": ("Comic",)}, "test_faces has Comic; choose from DejaVu"),
        ({"classes_per_client": 0}, "data.classes_per_client is 0; it must be at least 1"),
        ({"images_per_class": -1}, "data.images_per_class is -1"),
        ({"slant": -0.1}, "data.slant is -0.1"),
        ({"colour": 1}, "has no option colour"),
    ],
)
def test_bad_options_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        load(**changes)


def test_more_fonts_bring_more_classes(tmp_path, monkeypatch):
    """A folder with a changed copy of a shipped face: its characters move to other code points."""
    from fontTools.ttLib import TTFont
    from matplotlib import get_data_path

    monkeypatch.setenv("FEDSS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "more"
    folder.mkdir()
    for name in ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSansMono"):
        font = TTFont(f"{get_data_path()}/fonts/ttf/{name}.ttf")
        letters = {k: v for k, v in font.getBestCmap().items() if 0x41 <= k <= 0x5A}
        font["cmap"].tables = [table for table in font["cmap"].tables if table.isUnicode()]
        for table in font["cmap"].tables:
            table.cmap = {0x4E00 + k: v for k, v in letters.items()}
        for glyph in letters.values():
            font["glyf"][glyph].coordinates.scale((0.7, 0.4))  # a shape that no shipped face has
        font.save(folder / f"{name}-cjk.ttf")
    before, after = load(), load(font_dirs=(str(folder),))
    classes = [len(np.unique(d.test.labels)) for d in (before, after)]
    assert classes[1] == classes[0] + 26
