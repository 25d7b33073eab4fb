"""Encoders behind one small interface, `Model(init, embed)`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp

from fedss_jax.losses import normalize
from fedss_jax.models.layers import best_form
from fedss_jax.models.linear import Linear
from fedss_jax.models.mobilenet_v3 import LARGE, SMALL, MobileNetV3
from fedss_jax.models.small import SmallEncoder
from fedss_jax.packing import Effort
from fedss_jax.types import Model, Params, UserError

MODELS: dict[str, Callable[..., nn.Module]] = {
    "small": SmallEncoder,
    "mobilenet_v3_large": partial(MobileNetV3, LARGE),
    "mobilenet_v3_small": partial(MobileNetV3, SMALL),
    "linear": Linear,
}
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


def factory(name: str) -> Callable[..., nn.Module]:
    """An encoder of ours by its name, or anybody's by its import path, package.module:Factory."""
    if name in MODELS:
        return MODELS[name]
    path, colon, attribute = name.partition(":")
    if not colon:
        raise UserError(
            f"model.name is {name!r}, which does not exist; choose one of {', '.join(MODELS)},"
            " or give the import path of a Flax module, such as package.module:Factory"
        )
    if not (attribute.isidentifier() and all(part.isidentifier() for part in path.split("."))):
        raise UserError(f"model.name is {name!r}; an import path is written package.module:Factory")
    try:
        found = getattr(importlib.import_module(path), attribute, None)
    except ImportError as error:
        raise UserError(f"model.name is {name!r}, but {error}; is it on PYTHONPATH?") from error
    except Exception as error:  # whatever someone's module does when it is imported
        raise UserError(
            f"model.name is {name!r}, but to import {path} fails with {type(error).__name__}: {error}; correct it"
        ) from error
    if not callable(found):
        raise UserError(f"model.name is {name!r}, but {path} has no class or function {attribute}; correct the name")
    return found


def create(
    name: str,
    *,
    image_shape: tuple[int, ...],
    dim: int,
    dtype: str,
    options: Mapping[str, Any],
    platform: str | None = None,
) -> Model:
    """The named encoder from inputs [B, *image_shape] to unit vectors [B, dim].

    Parameters are float32 whatever `dtype` it computes in. `image_shape` is (H, W, C), or (F,) for feature vectors.
    `platform` is what it will run on, such as tpu; unset, the one that JAX runs on here.
    """
    make = factory(name)
    if dtype not in DTYPES:
        raise UserError(f"model.dtype is {dtype!r}; choose one of {', '.join(DTYPES)}")
    try:
        accepted: Mapping[str, Any] = inspect.signature(make).parameters
    except ValueError:  # as some built-in classes have none
        accepted = {}
    computes_in = {"dtype": DTYPES[dtype]} if "dtype" in accepted or dtype != "float32" else {}
    try:
        module = make(dim=dim, **computes_in, **options)
    except TypeError as error:
        raise UserError(f"model.options do not fit {name}: {error}; --config.model.options={{}} clears them") from None
    if not isinstance(module, nn.Module):
        raise UserError(
            f"model.name is {name!r}, which makes no flax.linen.Module but {type(module).__name__}; correct it"
        )

    if getattr(module, "convolution", None) == "auto":
        module = module.clone(convolution=best_form(platform or jax.default_backend()))

    def variables(key: jax.Array) -> Mapping[str, Params]:
        return module.init(key, jnp.zeros((1, *image_shape)))

    @jax.jit
    def init(key: jax.Array) -> Params:
        return variables(key)["params"]

    def embed(params: Params, images: jax.Array) -> jax.Array:
        return normalize(jnp.asarray(module.apply({"params": params}, images), jnp.float32))

    try:
        shapes = jax.eval_shape(variables, jax.random.key(0))
        if set(shapes) != {"params"}:
            raise ValueError(f"it has variables {sorted(shapes)}; clients train params alone (GroupNorm, no BatchNorm)")
        embeddings = jax.eval_shape(lambda params: embed(params, jnp.zeros((1, *image_shape))), shapes["params"])
        if embeddings.shape != (1, dim):
            raise ValueError(f"one input gives {[*embeddings.shape]}; model.dim asks for {[1, dim]}")
    except (TypeError, ValueError, ArithmeticError, LookupError, flax.errors.FlaxError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"model.options {dict(options)} do not fit {name} on inputs {image_shape}: {reason}") from None
    return Model(init, embed)


def count_parameters(params: Params) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def count_effort(model: Model, image_shape: tuple[int, ...]) -> Effort:
    """What embedding one example takes, by XLA's count before it fuses anything."""
    params = jax.eval_shape(model.init, jax.random.key(0))
    one = jax.ShapeDtypeStruct((1, *image_shape), jnp.float32)
    cost: Any = jax.jit(model.embed).lower(params, one).cost_analysis()
    # Where nothing is computed there is no count.
    return Effort(count_parameters(params), float(cost.get("flops", 0.0)), float(cost.get("bytes accessed", 0.0)))
