"""Rows of stored examples to the devices that take them."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import NamedSharding

from fedss_jax.data.store import aligned
from fedss_jax.types import Images

Blanks = dict[jax.Device, jax.Array]  # for each device a share of padding alone


def send(images: Images, rows: np.ndarray, sharding: NamedSharding, blanks: Blanks | None = None) -> jax.Array:
    """Rows of any shape [...], -1 for padding -> [..., *shape of an example], spread over the devices.

    Gathered device by device, so that a host reads no more than its own devices take. blanks: kept by who sends often
    and in one shape, so that a device without any example is sent its padding only once.
    """
    shape = (*rows.shape, *images.shape[1:])
    gathered: dict[str, np.ndarray] = {}  # several devices may take the same

    def share(device: jax.Device, place: tuple[slice, ...]) -> jax.Array:
        own = rows[place[: rows.ndim]]
        if blanks is None or (own >= 0).any():
            name = str(place)
            if name not in gathered:
                gathered[name] = gather(images, own)
            return jax.device_put(gathered[name], device)
        if device not in blanks:
            blanks[device] = jax.device_put(gather(images, own), device)
        return blanks[device]

    places = sharding.addressable_devices_indices_map(shape)
    shares = [share(device, place or ()) for device, place in places.items()]
    return jax.make_array_from_single_device_arrays(shape, sharding, shares)


def gather(images: Images, rows: np.ndarray) -> np.ndarray:
    """Rows of any shape; -1 gives zeros."""
    real = rows >= 0
    if real.all():
        return images[rows]
    batch = aligned((*rows.shape, *images.shape[1:]), images.dtype)
    batch[real] = images[rows[real]]
    batch[~real] = 0
    return batch
