from __future__ import annotations

import re
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from fedss_jax import models
from fedss_jax.models import direct, layers
from fedss_jax.models.layers import Conv
from fedss_jax.models.windows import same_padding, space_to_depth, symmetric_padding
from fedss_jax.types import UserError


def small(dtype="float32", **options):
    options = {"layers": ((8, 4, 2), (8, 3, 2)), "groups": 4} | options
    return models.create("small", image_shape=(16, 16, 1), dim=5, dtype=dtype, options=options)


@pytest.mark.parametrize(
    ("kernel", "stride", "size"), [(3, 1, 9), (3, 2, 8), (3, 2, 9), (8, 4, 32), (4, 2, 12), (1, 1, 5)]
)
def test_conv_is_a_convolution(kernel, stride, size):
    x = jax.random.normal(jax.random.key(0), (2, size, size, 3))
    conv = Conv(6, kernel, stride, jnp.float32, layers.form_of("auto"))
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


def convolution(kind, kernel, stride, padding, form):
    """As a function of x [B, H, W, C] and weights, and the weights' shape for 6 channels (in and out)."""
    form = layers.form_of(form)
    if kind == "dense":
        return lambda x, w: form.dense(x, w, kernel, stride, padding(x.shape)), (kernel * kernel * 6, 6)
    if kind == "depthwise":
        return lambda x, w: form.depthwise(x, w, stride, padding(x.shape)), (kernel, kernel, 6)
    return form.pointwise, (6, 6)


@pytest.mark.parametrize("kind", ["dense", "depthwise", "pointwise"])
@pytest.mark.parametrize(
    ("kernel", "stride", "size", "same"),
    [
        (3, 1, (9, 7), False),
        (3, 2, (20, 1), False),
        (5, 1, (2, 11), False),
        (5, 2, (12, 7), False),
        (4, 2, (8, 7), True),
    ],
)
def test_all_forms_of_a_convolution_agree_with_their_gradients_and_per_client_weights(kind, kernel, stride, size, same):
    padding = partial(same_padding, kernel=kernel, stride=stride) if same else lambda _: symmetric_padding(kernel)
    rng = np.random.default_rng(0)
    _, shape = convolution(kind, kernel, stride, padding, "auto")
    x = rng.normal(size=(2, 3, *size, 6)).astype(np.float32)  # two clients
    w = rng.normal(size=(2, *shape)).astype(np.float32)

    def results(form):
        """Outputs, and gradients of the sum of their squares."""
        conv, _ = convolution(kind, kernel, stride, padding, form)

        def client(x, w):
            y, pull_back = jax.vjp(conv, x, w)
            return y, pull_back(2 * y)

        return jax.jit(jax.vmap(client))(x, w)

    found = {form: jax.tree.leaves(results(form)) for form in layers.FORMS}
    for others in (found["tpu"], found["gpu"]):
        for one, other in zip(found["cpu"], others, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-3)


def test_the_platform_decides_the_form():
    def lowered(kind, platform, stride):
        form = layers.best_form(platform)
        conv, shape = convolution(kind, 3, stride, lambda _: symmetric_padding(3), form)
        gradient = jax.jit(jax.vmap(jax.grad(lambda x, w: jnp.sum(conv(x, w) ** 2), argnums=(0, 1))))
        inputs = jax.ShapeDtypeStruct((2, 3, 8, 8, 6), jnp.float32), jax.ShapeDtypeStruct((2, *shape), jnp.float32)
        text = jax.export.export(gradient, platforms=[platform])(*inputs).mlir_module()
        groups = set(re.findall(r"feature_group_count = (\d+)", text))
        return "sliced" if not groups else "one by one" if groups == {"1"} else "native"

    chosen = {(k, p): lowered(k, p, stride=2) for k in ("dense", "depthwise") for p in ("cpu", "tpu", "cuda")}
    assert chosen == {
        ("dense", "cpu"): "sliced",
        ("dense", "tpu"): "sliced",
        ("dense", "cuda"): "native",
        ("depthwise", "cpu"): "sliced",
        ("depthwise", "tpu"): "native",
        ("depthwise", "cuda"): "sliced",
    }
    assert lowered("dense", "cpu", stride=1) == "one by one"
    assert layers.form_of("auto") == layers.FORMS["cpu"]  # here


@pytest.mark.parametrize("own", [(True, True), (False, True), (True, False), (False, False)])
def test_direct_convolutions_of_clients_who_share_images_or_weights(own):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 2, 6, 5, 4)).astype(np.float32)
    w = rng.normal(size=(3, 3, 3, 4, 7)).astype(np.float32)
    x, w = (array if is_own else array[0] for array, is_own in zip((x, w), own, strict=True))

    def gradients(x, w):
        y, pull_back = jax.vjp(lambda x, w: direct.dense(x, w, symmetric_padding(3)), x, w)
        return y, pull_back(y)

    together = jax.vmap(gradients, in_axes=tuple(0 if is_own else None for is_own in own), axis_size=3)(x, w)
    for client in range(3):
        alone = gradients(*(array[client] if is_own else array for array, is_own in zip((x, w), own, strict=True)))
        for one, all_of_them in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
            np.testing.assert_allclose(all_of_them[client], one, rtol=1e-5, atol=1e-4)


def test_products_of_few_rows_have_the_gradient_of_any_other():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, layers.FEW_ROWS, 5)).astype(np.float32)  # two clients
    w = rng.normal(size=(2, 5, 3)).astype(np.float32)

    def gradients(product):
        return jax.vmap(jax.grad(lambda x, w: jnp.sum(product(x, w) ** 2), argnums=(0, 1)))(x, w)

    for thin, any_other in zip(gradients(layers.product_of_matrices), gradients(jnp.matmul), strict=True):
        np.testing.assert_allclose(thin, any_other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_train_the_same_in_loops_and_on_several_devices(stride):
    """Two steps of SGD at each of four clients, each with weights of its own: on one device and on two."""
    stem, stem_shape = convolution("dense", 3, stride, lambda _: symmetric_padding(3), "auto")
    middle, middle_shape = convolution("depthwise", 5, 1, lambda _: symmetric_padding(5), "auto")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 2, 3, 8, 8, 6)).astype(np.float32)  # clients, steps, batch
    weights = tuple(0.1 * rng.normal(size=shape).astype(np.float32) for shape in (stem_shape, middle_shape))

    def train(x, weights):
        def step(w, x):
            gradient = jax.grad(lambda w: jnp.mean(middle(nn.relu(stem(x, w[0])), w[1]) ** 2))(w)
            return jax.tree.map(lambda w, g: w - 0.1 * g, w, gradient), None

        return jax.vmap(lambda x: jax.lax.scan(step, weights, x)[0])(x)

    def train_share(x, weights):
        return train(x, jax.lax.pcast(weights, "clients", to="varying"))

    mesh = jax.make_mesh((2,), ("clients",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    spread = jax.shard_map(train_share, mesh=mesh, in_specs=(P("clients"), P()), out_specs=P("clients"))
    for one, two in zip(jax.jit(train)(x, weights), jax.jit(spread)(x, weights), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


def test_depthwise_sums_are_float32():
    x, weights = jnp.full((1, 5, 5, 1), 1.0, jnp.bfloat16), jnp.full((5, 5, 1), 1.0, jnp.bfloat16).at[0, 0].set(256.0)
    y = layers.FORMS["cpu"].depthwise(x, weights, 1, symmetric_padding(5))
    assert y.dtype == jnp.bfloat16 and float(y[0, 2, 2, 0]) == 280.0  # in bfloat16 256 + 1 is 256


def test_group_norm_is_that_of_flax_and_of_float32():
    x = 3.0 + jax.random.normal(jax.random.key(0), (2, 5, 7, 24))
    variables = {"params": {"scale": jnp.arange(24.0), "bias": jnp.arange(24.0)[::-1]}}
    expected = nn.GroupNorm(8, epsilon=1e-5).apply(variables, x)
    np.testing.assert_allclose(layers.GroupNorm(8, jnp.float32).apply(variables, x), expected, rtol=1e-4, atol=1e-4)

    rounded = (30.0 + x).astype(jnp.bfloat16)  # bfloat16 has steps of an eighth there: sums of it would be useless
    exact = nn.GroupNorm(8, epsilon=1e-5).apply(variables, rounded.astype(jnp.float32))
    normed = layers.GroupNorm(8, jnp.bfloat16).apply(variables, rounded)
    assert normed.dtype == jnp.bfloat16
    np.testing.assert_allclose(normed.astype(jnp.float32), exact, rtol=1e-2, atol=1e-2)


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


def create(name, image_shape=(8, 8, 1), **options):
    return models.create(name, image_shape=image_shape, dim=4, dtype="float32", options=options)


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(UserError, match=r"'resnet'.*small.*mobilenet_v3_large.*package\.module:Factory"):
        create("resnet")
    with pytest.raises(UserError, match=r"'float16'.*bfloat16"):
        models.create("small", image_shape=(8, 8, 1), dim=4, dtype="float16", options={})


@pytest.mark.parametrize(
    ("name", "image_shape", "options", "message"),
    [
        ("small", (64,), {}, r"on inputs \(64,\): it takes images \[B, H, W, C\], not inputs \[1, 64\]"),
        ("linear", (8, 8, 3), {}, r"takes feature vectors \[B, F\], not inputs \[1, 8, 8, 3\]"),
        (
            "small",
            (8, 8, 1),
            {"convolution": "fast"},
            r"convolution is 'fast'; choose one of auto, cpu, tpu, gpu",
        ),
    ],
)
def test_inputs_and_options_that_do_not_fit_are_told_in_a_line(name, image_shape, options, message):
    with pytest.raises(UserError, match=message) as caught:
        create(name, image_shape, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("hidden", "parameters"), [((), 7 * 4 + 4), ((5, 3), 7 * 5 + 5 + 5 * 3 + 3 + 3 * 4 + 4)])
def test_feature_vectors_have_an_encoder(hidden, parameters):
    model = create("linear", (7,), hidden=hidden)
    params = model.init(jax.random.key(0))
    assert models.count_parameters(params) == parameters
    embeddings = model.embed(params, jax.random.normal(jax.random.key(1), (3, 7)))
    np.testing.assert_allclose(jnp.linalg.norm(embeddings, axis=1), 1.0, rtol=1e-5)


OWN_MODULE = """
import flax.linen as nn

class Mine(nn.Module):
    dim: int
    dtype: object
    batch_norm: bool = False
    extra: int = 0

    @nn.compact
    def __call__(self, x):
        x = x.reshape(len(x), -1)
        if self.batch_norm:
            x = nn.BatchNorm(use_running_average=False)(x)
        return nn.Dense(self.dim + self.extra)(x)

def no_module(dim, dtype):
    return dim

number = 7
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_encoders.py").write_text(OWN_MODULE)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("own_module")
def test_anybodys_module_can_be_the_encoder():
    model = create("own_encoders:Mine")
    assert model.embed(model.init(jax.random.key(0)), jnp.ones((2, 8, 8, 1))).shape == (2, 4)


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("own_encoders:Yours", {}, "own_encoders has no class or function Yours"),
        ("own_encoders:number", {}, "has no class or function number"),
        ("own_encoders:no_module", {}, "makes no flax.linen.Module but int"),
        ("own_encoders:Mine", {"depth": 3}, "model.options do not fit own_encoders:Mine: .*depth.*clears them"),
        ("own_encoders:Mine", {"batch_norm": True}, r"variables \['batch_stats', 'params'\].*no BatchNorm"),
        ("own_encoders:Mine", {"extra": 1}, r"one input gives \[1, 5\]; model.dim asks for \[1, 4\]"),
        ("nobodys_encoders:Mine", {}, "No module named 'nobodys_encoders'.*PYTHONPATH"),
        (":Mine", {}, "written package.module:Factory"),
        ("own_encoders:", {}, "written package.module:Factory"),
    ],
)
def test_mistakes_with_ones_own_module_are_told_in_a_line(name, options, message):
    with pytest.raises(UserError, match=message) as caught:
        create(name, **options)
    assert "\n" not in str(caught.value)
