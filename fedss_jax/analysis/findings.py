"""What a run's page shows of its test examples: whom a query finds, which classes are hard, how classes lie."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedss_jax.analysis import class_map, pictures
from fedss_jax.analysis.confusion import confusion
from fedss_jax.evaluate import retrieval
from fedss_jax.types import Dataset, Images

EXAMPLES = 65_536  # of the test part, at most; whole classes of them
SHOWN = 10  # neighbours of a query
QUERIES = 300  # on the page, of which ...
EXTREMES = 16  # ... so many are the worst, and as many the best
LISTED = 8  # classes among the hardest, and among the easiest
CLIENT_EXAMPLES = 2_000  # of the client whose confusion is shown, at most

Embed = Callable[[Images, np.ndarray], np.ndarray]  # images, rows [N] -> unit vectors [N, d]


class Findings(NamedTuple):
    told: dict[str, Any]  # for findings.json
    rows: np.ndarray  # test examples that are shown, in the order of their numbers in `told`


def find(dataset: Dataset, embed: Embed, class_matrix: np.ndarray, seed: int = 0) -> Findings:
    """class_matrix [n, d]."""
    rng, test = np.random.default_rng(seed), dataset.test
    examples = whole_classes(test.labels, EXAMPLES, rng)
    labels, embeddings = test.labels[examples], embed(test.images, examples)
    near, attained, possible = retrieve(embeddings, labels)
    # Who is alone in its class can find nothing: that tells nothing of the encoder.
    answerable = np.flatnonzero(possible) if possible.any() else np.arange(len(labels))
    if dataset.task == "classification":
        judged, per_example, score = np.arange(len(labels)), predict(embeddings, class_matrix) == labels, "top-1"
    else:
        judged, per_example, score = answerable, attained, "MAP@10, as a share of what is attainable"
    classes, first, by_class = np.unique(labels[judged], return_index=True, return_inverse=True)
    first = judged[first]  # an example of each class, to show it by
    per_class = np.bincount(by_class, per_example[judged]) / np.bincount(by_class)
    order = np.argsort(per_class, kind="stable").tolist()
    hardest, easiest = order[:LISTED], order[: -LISTED - 1 : -1]
    chosen = choose_queries(attained, labels, answerable, classes[hardest + easiest], rng)

    shown: dict[int, int] = {}  # place among `examples` -> number of the picture

    def picture(place: int) -> int:
        return shown.setdefault(int(place), len(shown))

    def name(label: int) -> str:
        return test.name(int(label))

    queries = [
        {
            "class": name(labels[q]),
            "picture": picture(q),
            "score": round(float(attained[q]), 4),
            "possible": int(possible[q]),
            "kind": kind,
            "neighbours": [
                {"class": name(labels[i]), "picture": picture(i), "right": bool(labels[i] == labels[q])}
                for i in near[q].tolist()
            ],
        }
        for kind, q in chosen
    ]

    def about(c: int) -> dict[str, Any]:
        return {"class": name(classes[c]), "picture": picture(first[c]), "score": round(float(per_class[c]), 4)}

    mapped = np.flatnonzero(np.isin(classes, labels[[q for _, q in chosen]]))  # so that a search finds all of them
    points = class_map.place(class_map.class_means(embeddings[judged], labels[judged])[1][mapped])
    told = {
        "score": score,
        "examples": [len(examples), len(test)],
        "classes": len(np.unique(test.labels)),
        "alone": len(np.unique(labels)) - len(classes),
        "queries": queries,
        "class_scores": np.round(per_class, 4).tolist(),
        "hardest": [about(c) for c in hardest],
        "easiest": [about(c) for c in easiest],
        "map": [about(c) | {"at": [round(float(v), 4) for v in at]} for c, at in zip(mapped.tolist(), points)],
        "confusion": client_confusion(dataset, embed, class_matrix),
    }
    return Findings(told, examples[np.fromiter(shown, int, len(shown))])


def write(folder: Path, found: Findings, images: Images) -> None:
    """findings.json and, where examples are pictures, pictures.webp."""
    sheet = None
    if pictures.are_pictures(images):
        sheet = pictures.write_sheet(folder / "pictures.webp", images, found.rows)
    (folder / "findings.json").write_text(json.dumps(found.told | {"pictures": sheet}) + "\n")


def whole_classes(labels: np.ndarray, limit: int, rng: np.random.Generator) -> np.ndarray:
    """Rows [M] of all examples, or of random classes that together have no more than the limit; two at least."""
    classes, sizes = np.unique(labels, return_counts=True)
    if len(labels) <= limit:
        return np.arange(len(labels))
    order = rng.permutation(len(classes))
    fit = max(2, int(np.sum(np.cumsum(sizes[order]) <= limit)))
    return np.flatnonzero(np.isin(labels, classes[order[:fit]]))


def retrieve(embeddings: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The nearest others of each example [M, <= 10], its share of MAP@10 over the most that it could have [M], and how
    many right answers it can have among ten [M].
    """
    near = np.asarray(retrieval.neighbours(jnp.asarray(embeddings), min(SHOWN, len(labels) - 1)))
    _, inverse, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    possible = np.minimum(sizes[inverse] - 1, SHOWN)
    reached = retrieval.precision10(labels[near] == labels[:, None])
    return near, SHOWN * reached / np.maximum(possible, 1), possible


def choose_queries(
    scores: np.ndarray, labels: np.ndarray, among: np.ndarray, listed: np.ndarray, rng: np.random.Generator
) -> list[tuple[str, int]]:
    """Which of some examples to show as queries, and as what: of the worst and of the best, at random among equals; one
    of each listed class, for those who search for it; and any others, of as many classes as there is room for.
    """
    order = rng.permutation(among)
    order = order[np.argsort(scores[order], kind="stable")]
    extremes = min(EXTREMES, len(order) // 3)
    worst, best = order[:extremes], order[len(order) - extremes :][::-1]
    rest = rng.permutation(order[extremes : len(order) - extremes])
    is_first = np.isin(np.arange(len(rest)), np.unique(labels[rest], return_index=True)[1])
    is_listed = is_first & np.isin(labels[rest], listed)
    others = np.concatenate([rest[is_first & ~is_listed], rest[~is_first]])
    room = QUERIES - 2 * extremes - int(is_listed.sum())
    kinds = {"worst": worst, "best": best, "listed": rest[is_listed], "random": others[:room]}
    return [(kind, q) for kind, chosen in kinds.items() for q in chosen.tolist()]


def predict(embeddings: np.ndarray, class_matrix: np.ndarray, at_a_time: int = 1024) -> np.ndarray:
    """The class of the largest cosine, [M]."""
    length = np.linalg.norm(class_matrix, axis=1, keepdims=True)
    unit = (class_matrix / np.where(length > 0, length, 1)).T
    starts = range(0, len(embeddings), at_a_time)
    return np.concatenate([np.argmax(embeddings[i : i + at_a_time] @ unit, axis=1) for i in starts])


def client_confusion(dataset: Dataset, embed: Embed, class_matrix: np.ndarray) -> dict[str, Any]:
    """Of the first client that holds anything, so that all runs on the same data show the same client."""
    client, held = next((i, held) for i, held in enumerate(dataset.clients) if len(held))
    if len(held) > CLIENT_EXAMPLES:
        held = np.sort(np.random.default_rng(0).choice(held, CLIENT_EXAMPLES, replace=False))
    labels = dataset.train.labels[held]
    positives, counts = confusion(embed(dataset.train.images, held), labels, class_matrix)
    names = [dataset.train.name(int(label)) for label in positives]
    return {"client": client, "names": names, "counts": counts.tolist()}
