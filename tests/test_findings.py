from __future__ import annotations

import dataclasses
import json
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from fedss_jax.analysis import class_map, findings, pictures
from fedss_jax.data.augment import UNCHANGED
from fedss_jax.evaluate import retrieval
from fedss_jax.types import Dataset, Examples

CLASSES, EACH, DIM = 14, 6, 8


def embed(images, rows):
    """Vectors that are hidden in pictures: what a perfect encoder of these would give, and what a noisy one."""
    vectors = np.asarray(images[rows], np.float32).reshape(len(rows), -1)[:, :DIM] - 128
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def dataset(task="retrieval", classes=CLASSES):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), EACH).astype(np.int32)
    centres = rng.normal(size=(classes, DIM))
    vectors = centres[labels] + 0.25 * rng.normal(size=(len(labels), DIM))
    vectors[labels == 3] = rng.normal(size=(np.sum(labels == 3), DIM))  # one class that nobody can learn
    images = np.zeros((len(labels), 4, 4, 1), np.uint8)
    images.reshape(len(labels), -1)[:, :DIM] = np.clip(128 + 30 * vectors, 0, 255)
    names = ["<script>alert(1)</script>", *(f"class {i}" for i in range(1, classes))]
    part = Examples(images, labels, names)
    clients = [np.zeros(0, int), np.flatnonzero(labels < 4), np.flatnonzero(labels >= 4)]
    return Dataset("made up", task, classes, part, clients, part, UNCHANGED), centres


@pytest.mark.parametrize("task", ["retrieval", "classification"])
def test_what_a_page_needs(task, tmp_path):
    data, centres = dataset(task)
    found = findings.find(data, embed, centres)
    told = found.told
    kinds = [query["kind"] for query in told["queries"]]
    assert kinds.count("worst") == kinds.count("best") == 16 and len(kinds) == CLASSES * EACH
    scores = {kind: [q["score"] for q in told["queries"] if q["kind"] == kind] for kind in set(kinds)}
    assert max(scores["worst"]) <= min(scores["random"]) and max(scores["random"]) <= min(scores["best"])
    searched = {query["class"] for query in told["queries"]}
    assert {each["class"] for part in ("hardest", "easiest", "map") for each in told[part]} <= searched
    for query in told["queries"]:
        assert len(query["neighbours"]) == 10
        assert all((n["class"] == query["class"]) == n["right"] for n in query["neighbours"])
        assert data.test.name(data.test.labels[found.rows[query["picture"]]]) == query["class"]
    assert told["hardest"][0]["class"] == "class 3" and told["easiest"][-1]["score"] <= told["easiest"][0]["score"]
    assert len(told["map"]) == CLASSES and all(0 <= v <= 1 for each in told["map"] for v in each["at"])
    assert told["confusion"]["client"] == 1  # the first has nothing
    assert told["confusion"]["names"][0].startswith("<script>") and np.sum(told["confusion"]["counts"]) == 4 * EACH
    findings.write(tmp_path, found, data.test.images)
    written = json.loads((tmp_path / "findings.json").read_text())
    assert written["pictures"]["side"] == 4 and len(found.rows) <= written["pictures"]["columns"] ** 2
    with Image.open(tmp_path / "pictures.webp") as sheet:
        assert sheet.width == 4 * written["pictures"]["columns"]


def test_a_querys_score_is_its_share_of_what_it_could_have():
    labels = np.array([0, 0, 0, 1, 1, 2])
    embeddings = np.array([[1, 0], [0.99, 0.1], [0, 1], [0.05, 0.99], [-1, 0], [-0.9, -0.1]])
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    near, attained, possible = findings.retrieve(embeddings.astype(np.float32), labels)
    assert possible.tolist() == [2, 2, 2, 1, 1, 0]
    assert near[0].tolist()[:2] == [1, 3]  # then the third of its class, at rank 3
    assert attained[0] == pytest.approx((1 + 2 / 3) / 2) and attained[5] == 0


def test_who_is_alone_in_its_class_is_not_judged():
    data, centres = dataset()
    images, labels = data.test.images, data.test.labels.copy()
    labels[labels == 7] = [7, 20, 21, 22, 23, 24]  # six classes of one
    names = [str(i) for i in range(25)]
    alone = dataclasses.replace(data, test=Examples(images, labels, names))
    told = findings.find(alone, embed, centres).told
    assert told["alone"] == 6 and told["classes"] == CLASSES + 5 and len(told["class_scores"]) == CLASSES - 1
    assert all(query["possible"] == EACH - 1 for query in told["queries"]) and told["hardest"][0]["class"] == "3"


def test_queries_are_of_as_many_classes_as_there_is_room_for(monkeypatch):
    monkeypatch.setattr(findings, "QUERIES", 60)
    rng = np.random.default_rng(0)
    labels, scores = np.repeat(np.arange(40), 50), rng.random(2000)
    chosen = findings.choose_queries(scores, labels, np.arange(2000), np.array([3, 9]), rng)
    assert len(chosen) == len({q for _, q in chosen}) == 60
    assert sorted(labels[q] for kind, q in chosen if kind == "listed") == [3, 9]
    assert len({labels[q] for kind, q in chosen if kind == "random"}) == 26  # all that there was room for


def test_features_have_no_pictures(tmp_path):
    data, centres = dataset()
    features = embed(data.test.images, np.arange(len(data.test)))
    found = findings.find(data, embed, centres)
    findings.write(tmp_path, found, features)
    assert json.loads((tmp_path / "findings.json").read_text())["pictures"] is None
    assert not (tmp_path / "pictures.webp").exists()


def test_small_data_and_large_data_alike():
    data, centres = dataset(classes=2)
    told = findings.find(data, embed, centres).told
    assert len(told["queries"]) == 2 * EACH and len(told["map"]) == 2
    labels = np.repeat(np.arange(50), 4)
    rows = findings.whole_classes(labels, 42, np.random.default_rng(0))
    assert len(rows) == 40 and set(np.bincount(labels[rows]).tolist()) == {0, 4}


def test_the_map_puts_like_by_like():
    rng = np.random.default_rng(1)
    groups = np.repeat(np.arange(3), 20)
    means = rng.normal(size=(3, 16))[groups] + 0.1 * rng.normal(size=(60, 16))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        points = class_map.place(means)
    np.testing.assert_array_equal(points, class_map.place(means))
    distance = np.linalg.norm(points[:, None] - points[None], axis=-1)
    same = groups[:, None] == groups
    assert distance[same].mean() < 0.5 * distance[~same].mean()


@pytest.mark.parametrize("means", [np.zeros((23, 16)), np.full((23, 16), np.nan), np.ones((4, 3))])
def test_an_encoder_that_has_collapsed_still_gets_a_map(means):
    assert class_map.place(means).tolist() == [[0.0, 0.0]] * len(means)


def test_neighbours_of_some_are_those_of_all():
    vectors = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
    rows = np.array([299, 4, 4, 17, 250])
    everyone = np.asarray(retrieval.neighbours(jnp.asarray(vectors), 7, queries=64, gallery=128))
    some = np.asarray(retrieval.neighbours(jnp.asarray(vectors), 7, jnp.asarray(rows), queries=2, gallery=128))
    np.testing.assert_array_equal(some, everyone[rows])


def test_sheets_keep_pictures_whole(tmp_path):
    images = np.zeros((5, 100, 60, 3), np.uint8)
    images[2] = [255, 0, 0]
    about = pictures.write_sheet(tmp_path / "s.webp", images, np.array([0, 2, 4, 1]))
    assert about == {"side": 48, "columns": 2, "rows": 2}
    with Image.open(tmp_path / "s.webp") as opened:
        sheet = np.asarray(opened.convert("RGB")).astype(int)
    assert sheet.shape == (96, 96, 3)
    assert sheet[24, 72, 0] > 200 and sheet[24, 72, 1] < 60 and sheet[24, 24].max() < 30
    assert sheet[24, 50].max() < 60  # the tall picture has margins left and right
