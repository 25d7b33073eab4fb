"""Embeddings of many images, batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from fedss_jax import parallel
from fedss_jax.data.augment import pixels
from fedss_jax.types import Model, Params


def make_embed(model: Model, mesh: Mesh, batch_size: int) -> Callable[[Params, np.ndarray], jax.Array]:
    """embed(phi, images [N, H, W, C]) -> [N, d]. Each batch is spread over the mesh; one compile for any N."""
    batch_size = parallel.padded(batch_size, mesh)
    by_row = NamedSharding(mesh, parallel.BY_CLIENT)

    @partial(jax.jit, out_shardings=NamedSharding(mesh, parallel.REPLICATED))
    def embed_batch(params: Params, images: jax.Array) -> jax.Array:
        return model.embed(params, pixels(images))

    def embed(params: Params, images: np.ndarray) -> jax.Array:
        parts = []
        for start in range(0, len(images), batch_size):
            batch = np.asarray(images[start : start + batch_size])
            missing = batch_size - len(batch)
            batch = np.pad(batch, [(0, missing)] + [(0, 0)] * (batch.ndim - 1))
            part = embed_batch(params, jax.device_put(batch, by_row))
            parts.append(part[: batch_size - missing])
        return jnp.concatenate(parts)

    return embed
