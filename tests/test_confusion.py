from __future__ import annotations

import numpy as np

from fedss_jax.analysis.confusion import accuracy, confusion

# Class 1 points right, class 2 up, class 4 left; class 0 lies between 1 and 2, and has another length.
W = np.array([[5.0, 5.0], [1, 0], [0, 1], [0, -1], [-1, 0]])
EMBEDDINGS = np.array([[1.0, 0], [0.6, 0.8], [0, 1], [0.8, 0.6], [-1, 0]])
LABELS = np.array([1, 1, 2, 2, 4])


def test_among_the_clients_own_classes():
    positives, counts = confusion(EMBEDDINGS, LABELS, W)
    assert positives.tolist() == [1, 2, 4]
    assert counts.tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0]]
    assert accuracy(counts) == 0.6


def test_among_all_classes_the_last_column_counts_those_of_others():
    _, counts = confusion(EMBEDDINGS, LABELS, W, among_all=True)
    assert counts.tolist() == [[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 0]]
    assert accuracy(counts) == 0.6
