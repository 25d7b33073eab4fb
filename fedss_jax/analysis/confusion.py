"""Which of its own classes a client's model takes for which (the paper's figure 5).

    python -m fedss_jax.analysis.confusion runs/mine --client=0

The client's own examples are classified among its classes P_k, as the paper does, or with --all among all n.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedss_jax import finished
from fedss_jax.report import figures
from fedss_jax.types import UserError


def confusion(
    embeddings: np.ndarray, labels: np.ndarray, class_matrix: np.ndarray, *, among_all: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The classes P that are among the labels, ascending [P], and counts [P, P + 1]: an example of class i was taken
    for class j; in the last column for a class outside P, which happens only if all classes are in the choice.

    embeddings [N, d] unit vectors, labels [N], class_matrix [n, d].
    """
    positives = np.unique(labels)
    classes = np.arange(len(class_matrix)) if among_all else positives
    rows = np.asarray(class_matrix)[classes]
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    cosine = np.asarray(embeddings) @ (rows / np.where(length > 0, length, 1)).T
    predicted = classes[np.argmax(cosine, axis=1)]
    place = np.searchsorted(positives, predicted)
    is_own = positives[np.minimum(place, len(positives) - 1)] == predicted
    counts = np.zeros((len(positives), len(positives) + 1), int)
    np.add.at(counts, (np.searchsorted(positives, labels), np.where(is_own, place, len(positives))), 1)
    return positives, counts


def accuracy(counts: np.ndarray) -> float:
    return float(np.trace(counts) / counts.sum())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="confusion", description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("--client", type=int, default=0)
    parser.add_argument("--all", action="store_true", help="classify among all classes, not only the client's own")
    options = parser.parse_args(arguments)
    run = finished.read(options.run)
    clients = run.dataset.clients
    if not 0 <= options.client < len(clients):
        raise UserError(f"there is no client {options.client}; clients are 0 to {len(clients) - 1}")
    held = clients[options.client]
    embeddings = run.embed(run.dataset.train.images, held)
    labels = run.dataset.train.labels[held]
    positives, counts = confusion(embeddings, labels, np.asarray(run.theta.class_matrix), among_all=options.all)
    names = [run.dataset.train.name(label) for label in positives]
    path = options.run / "confusion.svg"
    figures.save(figures.confusion(counts.tolist(), names), path)
    choice = f"all {len(run.theta.class_matrix)} classes" if options.all else f"its {len(positives)} own classes"
    print(f"client {options.client}: {accuracy(counts):.1%} of {len(held)} examples are right among {choice}; {path}")


if __name__ == "__main__":
    finished.run_command(main)
