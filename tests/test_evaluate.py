"""Scores against plain re-computations, and neighbours against faiss."""

from __future__ import annotations

import faiss
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedss_jax import models, parallel
from fedss_jax.data.augment import UNCHANGED
from fedss_jax.evaluate import retrieval, top1
from fedss_jax.evaluate.embed import make_embed
from fedss_jax.rows import Layout, Lazy


def clustered(count, classes, dim=8, spread=0.7, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    vectors = rng.normal(size=(classes, dim))[labels] + spread * rng.normal(size=(count, dim))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float32), labels


def plain_scores(vectors, labels):
    """The metrics as their definitions read, one query at a time."""
    map10, ceiling, map_r, recall = [], [], [], {1: [], 10: [], 100: []}
    for q in range(len(vectors)):
        similarity = vectors @ vectors[q]
        others = [i for i in np.argsort(-similarity, kind="stable") if i != q]
        right = [labels[i] == labels[q] for i in others]
        relevant = sum(right)
        precision = lambda i: sum(right[:i]) / i  # noqa: B023, E731
        map10.append(sum(precision(i) for i in range(1, 11) if right[i - 1]) / 10)
        ceiling.append(min(relevant, 10) / 10)
        if relevant:
            map_r.append(sum(precision(i) for i in range(1, relevant + 1) if right[i - 1]) / relevant)
        for r, found in recall.items():
            found.append(any(right[:r]))
    return {
        "map10": np.mean(map10),
        "map10_ceiling": np.mean(ceiling),
        "map_r": np.mean(map_r),
        **{f"recall{r}": np.mean(found) for r, found in recall.items()},
    }


def test_map_at_10_by_hand():
    hits = np.array([[1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]], bool)
    found = retrieval.metrics(hits, np.array([3, 1]))
    assert found["map10"] == pytest.approx(((1 + 2 / 3) / 10 + (1 / 10) / 10) / 2)
    assert found["map10_ceiling"] == pytest.approx((0.3 + 0.1) / 2)
    assert found["map_r"] == pytest.approx(((1 + 2 / 3) / 3 + 0) / 2)
    assert (found["recall1"], found["recall10"]) == (0.5, 1.0)


@pytest.mark.parametrize(("count", "classes"), [(300, 60), (250, 8)])  # few pictures a class, and many
def test_scores_agree_with_a_plain_recomputation(count, classes):
    vectors, labels = clustered(count, classes)
    found, expected = retrieval.scores(jnp.asarray(vectors), labels), plain_scores(vectors, labels)
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-6), name
    assert 0 < found["map10"] < found["map10_ceiling"]


@pytest.mark.parametrize(("queries", "gallery"), [(64, 128), (1000, 1000), (37, 5)])
def test_neighbours_agree_with_faiss(queries, gallery):
    vectors, labels = clustered(1000, 100, dim=16)
    index = faiss.IndexFlatIP(16)
    index.add(vectors)
    _, expected = index.search(vectors, 13)
    expected = np.array([[i for i in row if i != q][:12] for q, row in enumerate(expected)])
    found = np.asarray(retrieval.neighbours(jnp.asarray(vectors), 12, queries=queries, gallery=gallery))
    # Where two neighbours are equally near to float32 rounding, either order is right.
    same = found == expected
    assert same.mean() > 0.999
    np.testing.assert_allclose(
        np.einsum("qkd,qd->qk", vectors[found], vectors), np.einsum("qkd,qd->qk", vectors[expected], vectors), atol=1e-6
    )
    assert (found != np.arange(1000)[:, None]).all()
    by_faiss = retrieval.metrics(labels[expected] == labels[:, None], np.bincount(labels)[labels] - 1)
    assert retrieval.scores(jnp.asarray(vectors), labels)["map10"] == pytest.approx(by_faiss["map10"], abs=1e-4)


@pytest.mark.parametrize(("count", "k", "gallery"), [(700, 10, 700), (700, 3, 129), (33, 5, 20), (700, 150, 700)])
def test_equals_are_found_in_the_order_of_their_index(count, k, gallery):
    """Coarse vectors, so that most neighbours are equally near, exactly: grouping must not change who comes first."""
    rng = np.random.default_rng(0)
    vectors = rng.integers(-1, 2, (count, 4)).astype(np.float32)
    similarity = vectors @ vectors.T
    np.fill_diagonal(similarity, -np.inf)
    expected = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
    found = retrieval.neighbours(jnp.asarray(vectors), k, queries=64, gallery=gallery)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("n", "k"), [(5, 3), (1000, 7), (1003, 12), (4096, 100)])
def test_grouped_top_k_is_top_k(n, k):
    rows = jnp.asarray(np.random.default_rng(0).integers(0, 50, (6, n)).astype(np.float32))
    for found, expected in zip(retrieval.top_k(rows, k), jax.lax.top_k(rows, k)):
        np.testing.assert_array_equal(found, expected)


def test_a_query_is_left_out_by_index_not_by_similarity():
    """Identical pictures of one class are each other's first neighbours."""
    vectors = jnp.array([[1.0, 0], [1.0, 0], [0, 1.0], [0, 1.0]])
    assert retrieval.neighbours(vectors, 2).tolist() == [[1, 2], [0, 2], [3, 0], [2, 0]]
    assert retrieval.scores(vectors, np.array([0, 0, 1, 1]))["recall1"] == 1.0


def test_a_class_of_one_picture_cannot_be_found_and_still_counts():
    vectors, _ = clustered(30, 3)
    labels = np.array([0] * 15 + [1] * 14 + [2])
    assert retrieval.scores(jnp.asarray(vectors), labels)["recall100"] == pytest.approx(29 / 30)


def test_map_at_r_is_left_out_where_classes_are_too_large_for_it(monkeypatch):
    vectors, labels = clustered(300, 2)
    assert "map_r" in retrieval.scores(jnp.asarray(vectors), labels)
    monkeypatch.setattr(retrieval, "MAX_NEIGHBOURS", 120)
    assert "map_r" not in retrieval.scores(jnp.asarray(vectors), labels)


def test_the_similarity_matrix_never_exists_whole():
    count = 8192
    lowered = retrieval.neighbours.lower(jax.ShapeDtypeStruct((count, 8), jnp.float32), 10, queries=128, gallery=1024)
    assert lowered.compile().memory_analysis().temp_size_in_bytes < count * count * 4 / 16


@pytest.mark.parametrize("block", [7, 50, 4096])
@pytest.mark.parametrize("devices", [1, 4])
def test_top1_agrees_with_one_big_product(block, devices):
    vectors, labels = clustered(200, 50)
    rows = np.random.default_rng(1).normal(size=(50, 8)).astype(np.float32) * 5
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    expected = np.argmax(vectors @ unit.T, axis=1)
    layout = Layout(parallel.make_mesh(jax.devices()[:devices]), 50, sharded=devices > 1)
    kept = Lazy(layout, 1.0, 0.0, False)
    placed = jax.device_put(kept.init(layout.fill_up(jnp.asarray(rows))), layout.sharding)
    predicted = top1.make_predict(kept, block)(jnp.asarray(vectors), placed, jnp.asarray(0))
    assert np.asarray(predicted).tolist() == expected.tolist()
    assert top1.accuracy(predicted, labels) == np.mean(expected == labels)


@pytest.mark.parametrize("devices", [1, 4])
def test_top1_brings_rows_up_to_date(devices):
    """Two rounds after it was last moved, momentum has carried a row to where the embedding is."""
    layout = Layout(parallel.make_mesh(jax.devices()[:devices]), 6, sharded=devices > 1)
    kept = Lazy(layout, 1.0, 0.5, False)
    rows = kept.init(layout.fill_up(jnp.eye(6)))
    rows = rows._replace(velocity=rows.velocity.at[5].set(jnp.array([-4.0, 0, 0, 0, 0, 0])))
    rows = jax.device_put(rows, layout.sharding)
    vectors = jnp.array([[1.0, 0, 0, 0, 0, 0.3]])
    predict = top1.make_predict(kept)
    assert [int(predict(vectors, rows, jnp.asarray(round))[0]) for round in (0, 2)] == [0, 5]


def test_embeddings_do_not_depend_on_batches_or_devices():
    options = {"layers": ((4, 4, 2),), "groups": 2}
    model = models.create("small", image_shape=(8, 8, 1), dim=4, dtype="float32", options=options)
    params = model.init(jax.random.key(0))
    images = np.random.default_rng(0).integers(0, 255, (21, 8, 8, 1), np.uint8)
    rows = np.arange(21)
    whole = make_embed(model, UNCHANGED, parallel.make_mesh(jax.devices()[:1]), 32)(params, images, rows)
    assert whole.shape == (21, 4)
    for devices, batch in ((1, 4), (8, 5)):
        parts = make_embed(model, UNCHANGED, parallel.make_mesh(jax.devices()[:devices]), batch)(params, images, rows)
        np.testing.assert_allclose(np.asarray(parts), np.asarray(whole), atol=1e-6)
