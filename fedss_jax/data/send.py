"""Rows of stored examples to the devices that take them."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import NamedSharding

from fedss_jax.data.store import aligned
from fedss_jax.types import Images


def send(images: Images, rows: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """Rows of any shape [...], -1 for padding -> [..., *shape of an example], spread over the devices.

    Asked for device by device, so that a host reads no more than its own devices take.
    """

    def share(place: tuple[slice, ...] | None) -> np.ndarray:
        return gather(images, rows[(place or ())[: rows.ndim]])

    return jax.make_array_from_callback((*rows.shape, *images.shape[1:]), sharding, share)


def gather(images: Images, rows: np.ndarray) -> np.ndarray:
    """Rows of any shape; -1 gives zeros."""
    real = rows >= 0
    if real.all():
        return images[rows]
    batch = aligned((*rows.shape, *images.shape[1:]), images.dtype)
    batch[real] = images[rows[real]]
    batch[~real] = 0
    return batch
