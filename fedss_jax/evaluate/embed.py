"""Embeddings of many images, batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from fedss_jax import parallel
from fedss_jax.data.send import send
from fedss_jax.types import Images, Model, Params, Transform

Embed = Callable[[Params, Images, np.ndarray], np.ndarray]
BATCHES_IN_FLIGHT = 2  # the next is gathered while one computes; more would only fill the device's memory


def make_embed(model: Model, transform: Transform, mesh: Mesh, batch_size: int) -> Embed:
    """embed(phi, images, rows [N]) -> [N, d]. Each batch is spread over the mesh; one compile for any N."""
    batch_size = parallel.padded(batch_size, mesh)
    by_row = NamedSharding(mesh, parallel.BY_CLIENT)
    everywhere = NamedSharding(mesh, parallel.REPLICATED)

    @partial(jax.jit, out_shardings=everywhere, compiler_options=parallel.compiler_options(mesh))
    def embed_batch(params: Params, images: jax.Array) -> jax.Array:
        return model.embed(params, jax.vmap(transform.test)(images))

    def embed(params: Params, images: Images, rows: np.ndarray) -> np.ndarray:
        padded = np.pad(rows, (0, -len(rows) % batch_size), constant_values=-1)
        parts: list[jax.Array | np.ndarray] = []
        for batch in padded.reshape(-1, batch_size):
            sent = send(images, batch, by_row)
            if len(parts) >= BATCHES_IN_FLIGHT:
                parts[-BATCHES_IN_FLIGHT] = np.asarray(parts[-BATCHES_IN_FLIGHT])
            parts.append(embed_batch(params, sent))
        return np.concatenate(parts)[: len(rows)]

    return embed
