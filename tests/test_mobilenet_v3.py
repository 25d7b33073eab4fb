from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedss_jax import models
from fedss_jax.models.mobilenet_v3 import make_divisible
from fedss_jax.types import UserError

FEATURES = {"large": 2_971_952, "small": 927_008}  # parameters before pooling


def create(size="small", *, pixels=32, dim=64, dtype="float32", platform=None, **options):
    shape = (pixels, pixels, 3)
    return models.create(
        f"mobilenet_v3_{size}", image_shape=shape, dim=dim, dtype=dtype, options=options, platform=platform
    )


def parameters(model):
    return models.count_parameters(jax.eval_shape(model.init, jax.random.key(0)))


@pytest.mark.parametrize(
    ("size", "channels", "hidden", "classifier"), [("large", 960, 1280, 5_483_032), ("small", 576, 1024, 2_542_856)]
)
def test_numbers_of_parameters(size, channels, hidden, classifier):
    assert parameters(create(size)) == FEATURES[size] + channels * 64 + 64
    assert parameters(create(size, dim=1000, hidden=hidden)) == classifier


def test_layers_have_names_that_last():
    params = jax.eval_shape(create("large", hidden=8).init, jax.random.key(0))
    assert params.keys() == {"stem", *(f"block_{i}" for i in range(1, 16)), "last", "hidden", "head"}
    assert params["block_1"].keys() == {"depthwise", "project"}
    assert params["block_4"].keys() == {"expand", "depthwise", "squeeze", "project"}
    assert params["block_4"]["depthwise"]["kernel"].shape == (5, 5, 72)
    assert params["block_4"]["squeeze"]["fc1"]["kernel"].shape == (72, 24)


def test_rematerialization_changes_no_number_and_keeps_less():
    plain, again = create(pixels=64, depth=3), create(pixels=64, depth=3, remat=True)
    params = plain.init(jax.random.key(0))
    assert jax.tree.structure(jax.eval_shape(again.init, jax.random.key(0))) == jax.tree.structure(params)
    images = jnp.asarray(np.random.default_rng(0).normal(size=(4, 64, 64, 3)), jnp.float32)
    gradients, kept = [], []
    for model in (plain, again):

        def loss(params, model=model):
            return jnp.sum(model.embed(params, images)[:, 0])

        gradients.append(jax.jit(jax.grad(loss))(params))
        _, pull_back = jax.vjp(loss, params)
        kept.append(sum(leaf.nbytes for leaf in jax.tree.leaves(pull_back)))
    for a, b in zip(*map(jax.tree.leaves, gradients)):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert kept[1] < 0.6 * kept[0]


@pytest.mark.parametrize(
    ("channels", "rounded"), [(16 * 0.35, 8), (72 / 4, 24), (120 / 4, 32), (11, 16), (12, 16), (1, 8), (960, 960)]
)
def test_channels_are_multiples_of_eight_and_hardly_fewer(channels, rounded):
    assert make_divisible(channels) == rounded


def test_width_narrows_every_layer_but_the_head():
    params = jax.eval_shape(create("large", width=0.5).init, jax.random.key(0))
    assert params["stem"]["kernel"].shape == (27, 8)
    assert params["block_15"]["project"]["kernel"].shape == (480, 80)
    assert params["head"]["kernel"].shape == (480, 64)


def test_bfloat16_is_close_to_float32_on_odd_images_of_any_size():
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(create(width=0.25).init, jax.random.key(0))
    params = jax.tree.map(lambda a: rng.normal(0, a.shape[0] ** -0.5, a.shape).astype(np.float32), shapes)
    images = rng.normal(size=(2, 45, 37, 3)).astype(np.float32)
    exact, rounded = (
        jax.jit(create(width=0.25, dtype=dtype).embed)(params, images) for dtype in ("float32", "bfloat16")
    )
    assert exact.shape == rounded.shape == (2, 64) and rounded.dtype == jnp.float32
    assert 0 < float(jnp.abs(exact - rounded).max()) < 0.1


@pytest.mark.parametrize(("platform", "convolutions"), [("cpu", 0), ("tpu", 11)])
def test_on_a_cpu_all_is_products_and_sums_and_on_a_tpu_convolutions_are_convolutions(platform, convolutions):
    model = create(width=0.25, platform=platform)
    params = jax.eval_shape(jax.vmap(model.init), jax.random.split(jax.random.key(0), 2))
    images = jax.ShapeDtypeStruct((2, 1, 32, 32, 3), jnp.float32)
    program = jax.export.export(jax.jit(jax.vmap(model.embed)), platforms=[platform])(params, images)
    assert program.mlir_module().count("stablehlo.convolution") == convolutions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pixels": 31}, r"at least 32 x 32 pixels, not 31 x 31"),
        ({"groups": 5}, r"groups is 5; it must divide all numbers of channels, and 16 is one"),
        ({"groups": 0}, r"groups is 0"),
        ({"width": 0.0}, r"width is 0.0; it must be above 0"),
        ({"hidden": -1}, r"hidden is -1; it must be 0 .* or more"),
        ({"convolution": "quick"}, r"convolution is 'quick'; choose one of auto, cpu, tpu, gpu"),
        ({"depth": 12}, r"depth is 12; there are 11 blocks, and 0 stands for all"),
        ({"layers": 3}, r"layers"),
        ({"blocks": ()}, r"blocks"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(UserError, match=message) as caught:
        create(**options)
    assert str(caught.value).startswith("model.options") and "\n" not in str(caught.value)
