"""Image encoders behind one small interface, `Model(init, embed)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedss_jax.losses import normalize
from fedss_jax.models.small import SmallEncoder
from fedss_jax.types import Model, Params, UserError

MODELS: dict[str, Callable[..., nn.Module]] = {"small": SmallEncoder}
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


def create(name: str, *, image_shape: tuple[int, ...], dim: int, dtype: str, options: Mapping[str, Any]) -> Model:
    """The named encoder from images [B, *image_shape] to unit vectors [B, dim].

    Parameters are float32 whatever `dtype` it computes in.
    """
    if name not in MODELS:
        raise UserError(f"model.name is {name!r}, which does not exist; choose one of {', '.join(MODELS)}")
    if dtype not in DTYPES:
        raise UserError(f"model.dtype is {dtype!r}; choose one of {', '.join(DTYPES)}")
    try:
        module = MODELS[name](dim=dim, dtype=DTYPES[dtype], **options)
    except TypeError as error:
        raise UserError(f"model.options: {error}") from None

    @jax.jit
    def init(key: jax.Array) -> Params:
        return module.init(key, jnp.zeros((1, *image_shape)))["params"]

    def embed(params: Params, images: jax.Array) -> jax.Array:
        return normalize(jnp.asarray(module.apply({"params": params}, images), jnp.float32))

    try:
        jax.eval_shape(lambda: embed(init(jax.random.key(0)), jnp.zeros((1, *image_shape))))
    except (TypeError, ValueError, ArithmeticError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"model.options {dict(options)} do not fit {name} on images {image_shape}: {reason}") from None
    return Model(init, embed)


def count_parameters(params: Params) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))
