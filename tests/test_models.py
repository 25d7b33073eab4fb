from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedss_jax import models
from fedss_jax.models.layers import Conv, space_to_depth
from fedss_jax.types import UserError


def small(dtype="float32", **options):
    options = {"layers": ((8, 4, 2), (8, 3, 2)), "groups": 4} | options
    return models.create("small", image_shape=(16, 16, 1), dim=5, dtype=dtype, options=options)


@pytest.mark.parametrize(
    ("kernel", "stride", "size"), [(3, 1, 9), (3, 2, 8), (3, 2, 9), (8, 4, 32), (4, 2, 12), (1, 1, 5)]
)
def test_conv_is_a_convolution(kernel, stride, size):
    x = jax.random.normal(jax.random.key(0), (2, size, size, 3))
    conv = Conv(6, kernel, stride, jnp.float32)
    variables = conv.init(jax.random.key(1), x)
    weights = variables["params"]["Dense_0"]["kernel"]
    if kernel % stride == 0 and stride > 1:  # the weights of folded strides, back in row-major order
        k = kernel // stride
        weights = weights.reshape(k, k, stride, stride, 3, 6).transpose(0, 2, 1, 3, 4, 5)
    weights = weights.reshape(kernel, kernel, 3, 6)
    expected = jax.lax.conv_general_dilated(
        x, weights, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    np.testing.assert_allclose(conv.apply(variables, x), expected, rtol=1e-4, atol=1e-5)


def test_space_to_depth_by_hand():
    x = jnp.arange(16).reshape(1, 4, 4, 1)
    assert space_to_depth(x, 2)[0, 0, 1].tolist() == [2, 3, 6, 7]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_embeddings_are_float32_unit_vectors_and_parameters_float32(dtype):
    model = small(dtype)
    params = model.init(jax.random.key(0))
    embeddings = model.embed(params, jax.random.normal(jax.random.key(1), (3, 16, 16, 1)))
    assert embeddings.shape == (3, 5) and embeddings.dtype == jnp.float32
    np.testing.assert_allclose(jnp.linalg.norm(embeddings, axis=1), 1.0, rtol=1e-5)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}


def test_bfloat16_is_close_to_float32_but_not_the_same():
    images = jax.random.normal(jax.random.key(1), (3, 16, 16, 1))
    params = small().init(jax.random.key(0))
    exact, rounded = small().embed(params, images), small("bfloat16").embed(params, images)
    difference = float(jnp.abs(exact - rounded).max())
    assert 0 < difference < 0.05


def test_an_embedding_does_not_depend_on_its_batch():
    """GroupNorm, not BatchNorm: a client's small batches must not leak into one another."""
    model = small()
    params = model.init(jax.random.key(0))
    images = jax.random.normal(jax.random.key(1), (4, 16, 16, 1))
    np.testing.assert_allclose(model.embed(params, images)[:1], model.embed(params, images[:1]), atol=1e-6)


def test_per_client_weights_under_vmap_are_matrix_products():
    """No convolution in the compiled program: XLA runs grouped ones slowly on a CPU."""
    model = small()
    params = jax.vmap(model.init)(jax.random.split(jax.random.key(0), 3))
    gradient = jax.vmap(jax.grad(lambda p, x: jnp.sum(model.embed(p, x)[:, 0])))
    text = jax.jit(gradient).lower(params, jnp.zeros((3, 2, 16, 16, 1))).as_text()
    assert "convolution" not in text and "dot_general" in text


def test_parameters_of_the_glyph_encoder():
    model = models.create(
        "small",
        image_shape=(32, 32, 1),
        dim=64,
        dtype="float32",
        options={"layers": ((32, 8, 4), (64, 3, 2)), "groups": 4},
    )
    convolutions = 8 * 8 * 32 + 3 * 3 * 32 * 64
    norms = 2 * (32 + 64)
    assert models.count_parameters(model.init(jax.random.key(0))) == convolutions + norms + 4 * 4 * 64 * 64 + 64


@pytest.mark.parametrize("options", [{"groups": 5}, {"layers": ((8, 3, 0),)}, {"depth": 3}, {"layers": 7}])
def test_options_that_do_not_fit_are_refused(options):
    with pytest.raises(UserError, match=r"^model.options"):
        small(**options)


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(UserError, match=r"'resnet'.*small"):
        models.create("resnet", image_shape=(8, 8, 1), dim=4, dtype="float32", options={})
    with pytest.raises(UserError, match=r"'float16'.*bfloat16"):
        models.create("small", image_shape=(8, 8, 1), dim=4, dtype="float16", options={})
