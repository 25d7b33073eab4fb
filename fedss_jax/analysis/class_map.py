"""Classes on a plane: those that lie close together are those that the encoder finds alike."""

from __future__ import annotations

import numpy as np

FEWEST = 10  # classes that t-SNE is asked to place; fewer are placed by their two main directions


def class_means(embeddings: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors [N, d] and their classes [N] -> the classes that occur, ascending [C], and their means [C, d]."""
    classes, place = np.unique(labels, return_inverse=True)
    sums = np.zeros((len(classes), embeddings.shape[1]))
    np.add.at(sums, place, embeddings)
    length = np.linalg.norm(sums, axis=1, keepdims=True)
    return classes, sums / np.where(length > 0, length, 1)


def place(means: np.ndarray, seed: int = 0) -> np.ndarray:
    """Vectors [C, d] as points of the unit square [C, 2]; the same vectors give the same points."""
    centred = means - means.mean(axis=0)
    if not np.isfinite(centred).all() or not centred.any():  # an encoder that has collapsed; t-SNE would, too
        return np.zeros((len(means), 2))
    if len(means) < FEWEST:
        directions = np.linalg.svd(centred, full_matrices=False)[2][:2]
        points = centred @ directions.T
        points = np.pad(points, ((0, 0), (0, 2 - points.shape[1])))
    else:
        from sklearn.manifold import TSNE  # half a second to import, and only here
        from threadpoolctl import threadpool_limits

        tsne = TSNE(perplexity=min(30.0, (len(means) - 1) / 3), init="pca", metric="cosine", random_state=seed)
        with threadpool_limits(limits=1):  # its threads wait for each other busily: where others work too, for minutes
            points = tsne.fit_transform(means)
    low, high = points.min(axis=0), points.max(axis=0)
    return (points - low) / np.where(high > low, high - low, 1)
