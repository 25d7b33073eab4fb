from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax.traverse_util import flatten_dict

from fedss_jax import models, weights
from fedss_jax.types import UserError

# torchvision's tables: kernel, expanded, out, squeeze-excite, hard-swish, stride
LARGE = [
    (3, 16, 16, 0, 0, 1), (3, 64, 24, 0, 0, 2), (3, 72, 24, 0, 0, 1), (5, 72, 40, 1, 0, 2), (5, 120, 40, 1, 0, 1),
    (5, 120, 40, 1, 0, 1), (3, 240, 80, 0, 1, 2), (3, 200, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1),
    (3, 480, 112, 1, 1, 1), (3, 672, 112, 1, 1, 1), (5, 672, 160, 1, 1, 2), (5, 960, 160, 1, 1, 1),
    (5, 960, 160, 1, 1, 1),
]  # fmt: skip
SMALL = [
    (3, 16, 16, 1, 0, 2), (3, 72, 24, 0, 0, 2), (3, 88, 24, 0, 0, 1), (5, 96, 40, 1, 1, 2), (5, 240, 40, 1, 1, 1),
    (5, 240, 40, 1, 1, 1), (5, 120, 48, 1, 1, 1), (5, 144, 48, 1, 1, 1), (5, 288, 96, 1, 1, 2), (5, 576, 96, 1, 1, 1),
    (5, 576, 96, 1, 1, 1),
]  # fmt: skip
SQUEEZED = {16: 8, 72: 24, 96: 24, 120: 32, 144: 40, 240: 64, 288: 72, 480: 120, 576: 144, 672: 168, 960: 240}


def torchvision_state(table, hidden):
    """A random state dict with torchvision's names and shapes."""
    rng = np.random.default_rng(0)
    state = {}

    def layer(name, *shape, bias=True):
        state[f"{name}.weight"] = rng.normal(0, np.prod(shape[1:]) ** -0.5, shape).astype(np.float32)
        if bias:
            state[f"{name}.bias"] = rng.normal(0, 0.3, shape[0]).astype(np.float32)

    def conv_norm(name, *shape):
        layer(f"{name}.0", *shape, bias=False)
        state[f"{name}.1.weight"] = rng.normal(1, 0.3, shape[0]).astype(np.float32)
        state[f"{name}.1.bias"] = rng.normal(0, 0.3, shape[0]).astype(np.float32)
        state[f"{name}.1.running_mean"] = np.zeros(shape[0], np.float32)
        state[f"{name}.1.running_var"] = np.ones(shape[0], np.float32)
        state[f"{name}.1.num_batches_tracked"] = np.array(7)

    conv_norm("features.0", 16, 3, 3, 3)
    channels = 16
    for i, (kernel, expanded, out, squeeze, _, _) in enumerate(table, 1):
        part = 0
        if expanded != channels:
            conv_norm(f"features.{i}.block.{part}", expanded, channels, 1, 1)
            part += 1
        conv_norm(f"features.{i}.block.{part}", expanded, 1, kernel, kernel)
        part += 1
        if squeeze:
            layer(f"features.{i}.block.{part}.fc1", SQUEEZED[expanded], expanded, 1, 1)
            layer(f"features.{i}.block.{part}.fc2", expanded, SQUEEZED[expanded], 1, 1)
            part += 1
        conv_norm(f"features.{i}.block.{part}", out, expanded, 1, 1)
        channels = out
    conv_norm(f"features.{len(table) + 1}", 6 * channels, channels, 1, 1)
    layer("classifier.0", hidden, 6 * channels)
    layer("classifier.3", 1000, hidden)
    return state


def torchvision_forward(state, table, x):
    """torchvision's network on x [B, 3, H, W] up to the classifier's hidden layer, with GroupNorm."""

    def conv(name, x, stride=1):
        w = state[f"{name}.weight"]
        margin = [(w.shape[2] // 2, w.shape[2] // 2)] * 2
        groups = x.shape[1] // w.shape[1]
        return jax.lax.conv_general_dilated(x, w, (stride, stride), margin, feature_group_count=groups)

    def by_channel(vector):
        return vector[None, :, None, None]

    def conv_norm(name, x, stride=1):
        x = conv(f"{name}.0", x, stride)
        groups = x.reshape(x.shape[0], 8, -1)
        groups = (groups - groups.mean(-1, keepdims=True)) / jnp.sqrt(groups.var(-1, keepdims=True) + 1e-5)
        return groups.reshape(x.shape) * by_channel(state[f"{name}.1.weight"]) + by_channel(state[f"{name}.1.bias"])

    def hard_swish(x):
        return x * jnp.clip(x + 3, 0, 6) / 6

    x = hard_swish(conv_norm("features.0", x, 2))
    for i, (_, expanded, _, squeeze, hard, stride) in enumerate(table, 1):
        act = hard_swish if hard else jax.nn.relu
        y, part = x, 0
        if expanded != x.shape[1]:
            y, part = act(conv_norm(f"features.{i}.block.0", y)), 1
        y = act(conv_norm(f"features.{i}.block.{part}", y, stride))
        if squeeze:
            part += 1
            fc1, fc2 = (f"features.{i}.block.{part}.fc{n}" for n in (1, 2))
            pooled = y.mean((2, 3), keepdims=True)
            inner = jax.nn.relu(conv(fc1, pooled) + by_channel(state[f"{fc1}.bias"]))
            y = y * jnp.clip(conv(fc2, inner) + by_channel(state[f"{fc2}.bias"]) + 3, 0, 6) / 6
        y = conv_norm(f"features.{i}.block.{part + 1}", y)
        x = x + y if x.shape == y.shape else y
    x = hard_swish(conv_norm(f"features.{len(table) + 1}", x)).mean((2, 3))
    return hard_swish(x @ state["classifier.0.weight"].T + state["classifier.0.bias"])


def mobilenet(size, dim, **options):
    name = f"mobilenet_v3_{size}"
    return models.create(name, image_shape=(64, 64, 3), dim=dim, dtype="float32", options=options)


def small_encoder(dim=6, layers=((8, 4, 2),)):
    options = {"layers": layers, "groups": 4}
    model = models.create("small", image_shape=(8, 8, 1), dim=dim, dtype="float32", options=options)
    rng = np.random.default_rng(dim)
    return jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape), jnp.float32), zeros(model))


def zeros(model):
    """The parameters of a model, all 0."""
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(model.init, jax.random.key(0)))


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def refusal(path, params, **options):
    """The one line that `load` refuses a file with."""
    with pytest.raises(UserError) as caught:
        weights.load(path, params, **options)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    return message


@pytest.mark.parametrize(("size", "table", "hidden"), [("small", SMALL, 1024), ("large", LARGE, 1280)])
def test_torchvisions_weights_make_torchvisions_network(tmp_path, size, table, hidden):
    state = torchvision_state(table, hidden)
    safetensors.numpy.save_file(state, tmp_path / "torchvision.safetensors")
    model = mobilenet(size, hidden, hidden=hidden)
    params, note = weights.load(tmp_path / "torchvision.safetensors", zeros(model))
    assert "BatchNorm" in note and note.endswith("torchvision.safetensors and starts at random")

    params["head"]["kernel"] = jnp.eye(hidden)  # so that the embedding is the hidden layer, as a unit vector
    images = np.random.default_rng(1).normal(size=(2, 64, 64, 3)).astype(np.float32)
    expected = jax.jit(lambda x: torchvision_forward(state, table, x))(images.transpose(0, 3, 1, 2))
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(jax.jit(model.embed)(params, images), expected, rtol=1e-3, atol=1e-5)


def test_torchvisions_classifier_is_left_out_where_it_does_not_fit(tmp_path):
    np.savez(tmp_path / "torchvision.npz", **torchvision_state(SMALL, 1024))
    _, note = weights.load(tmp_path / "torchvision.npz", zeros(mobilenet("small", 5, hidden=7)))
    assert "the head (head, hidden) is not in" in note
    params, note = weights.load(tmp_path / "torchvision.npz", zeros(mobilenet("small", 5)))
    assert "the head is not in" in note
    assert not params["head"]["kernel"].any() and params["last"]["kernel"].all()


def test_torchvisions_weights_fit_no_other_model(tmp_path):
    state = torchvision_state(SMALL, 1024)
    path = tmp_path / "torchvision.npz"
    np.savez(path, **state)
    assert "model.name" in refusal(path, zeros(mobilenet("large", 5)))
    message = refusal(path, zeros(mobilenet("small", 5, width=0.5)))
    assert "block_1/depthwise/kernel is [3, 3, 16]" in message and "[3, 3, 8] in the model" in message
    assert "set model.name to mobilenet_v3_large or mobilenet_v3_small" in refusal(path, small_encoder())
    np.savez(path, **state, **{"features.13.0.weight": np.ones((2, 2, 1, 1), np.float32)})
    assert "has features.13.0.weight [2, 2, 1, 1], which the model has not" in refusal(
        path, zeros(mobilenet("small", 5))
    )


def test_what_was_saved_is_loaded(tmp_path):
    params, other = small_encoder(), jax.tree.map(jnp.zeros_like, small_encoder())
    weights.save(tmp_path / "encoder.safetensors", params)
    loaded, note = weights.load(tmp_path / "encoder.safetensors", other)
    assert_same(loaded, params)
    assert note == "" and [file.name for file in tmp_path.iterdir()] == ["encoder.safetensors"]
    with safetensors.safe_open(tmp_path / "encoder.safetensors", framework="np") as file:
        assert file.metadata() == {"format": "fedss_jax encoder"}
        assert "Conv_0/Dense_0/kernel" in file.keys()  # noqa: SIM118, it is no dict


@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16"])
def test_other_kinds_of_floats_become_float32(tmp_path, dtype):
    params = jax.tree.map(lambda a: jnp.round(a, 1).astype(jnp.bfloat16).astype(jnp.float32), small_encoder())
    stored = {name: np.asarray(array).astype(dtype) for name, array in flatten_dict(params, sep="/").items()}
    safetensors.numpy.save_file(stored, tmp_path / "encoder.safetensors")
    loaded, _ = weights.load(tmp_path / "encoder.safetensors", small_encoder())
    assert {leaf.dtype for leaf in jax.tree.leaves(loaded)} == {jnp.dtype("float32")}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3), loaded, params)


def test_a_head_that_is_not_in_the_file_keeps_its_values(tmp_path):
    params, other = small_encoder(), jax.tree.map(lambda a: a + 1, small_encoder())
    path = tmp_path / "encoder.safetensors"
    weights.save(path, {name: layer for name, layer in params.items() if name != "Dense_0"})
    loaded, note = weights.load(path, other)
    assert_same(loaded, params | {"Dense_0": other["Dense_0"]})
    assert note == f"the head (Dense_0) is not in {path} and starts at random"


def test_a_head_of_another_size_is_refused_unless_it_is_not_wanted(tmp_path):
    path = tmp_path / "encoder.safetensors"
    weights.save(path, small_encoder(dim=9))
    params = small_encoder(dim=6)
    message = refusal(path, params)
    assert "Dense_0/bias is [9]" in message and "but [6] in the model" in message
    assert "set model.dim to 9, or --config.init_from_head=False to start the head at random" in message
    loaded, note = weights.load(path, params, head=False)
    assert_same(loaded["Dense_0"], params["Dense_0"])
    assert_same(loaded["Conv_0"], small_encoder(dim=9)["Conv_0"])
    assert "init_from_head is False" in note


def test_what_does_not_fit_is_named_with_both_shapes(tmp_path):
    path = tmp_path / "encoder.safetensors"
    params = small_encoder()
    weights.save(path, params)
    deeper = small_encoder(layers=((8, 4, 2), (8, 3, 1)))
    assert "has no Conv_1/Dense_0/kernel [72, 8], which the model has; set model.name" in refusal(path, deeper)
    wider = small_encoder(layers=((12, 4, 2),))
    assert "Conv_0/Dense_0/kernel is [16, 8]" in refusal(path, wider) and "[16, 12]" in refusal(path, wider)
    weights.save(path, deeper)
    assert "has Conv_1/Dense_0/kernel [72, 8], which the model has not" in refusal(path, params)
    weights.save(path, jax.tree.map(lambda a: a.astype(jnp.int32), params))
    assert "is int32; save it as float32" in refusal(path, params)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_values_that_are_not_finite_are_refused(tmp_path, bad):
    params = flatten_dict(small_encoder(), sep="/")
    path = tmp_path / "encoder.npz"
    np.savez(path, **params | {"Dense_0/bias": np.array([0, 0, 0, bad, 0, 0])})
    assert "Dense_0/bias" in refusal(path, small_encoder()) and "finite" in refusal(path, small_encoder())


def test_files_that_cannot_be_read_are_refused(tmp_path):
    params = small_encoder()
    assert "is not a file" in refusal(tmp_path / "none.safetensors", params)
    for name in ("model.pth", "model.pt", "model.pkl"):
        assert 'safetensors.torch.save_file(torch.load("model.' in refusal(tmp_path / name, params)
    assert ".safetensors or an .npz" in refusal(tmp_path / "model.h5", params)

    whole, cut = tmp_path / "whole.safetensors", tmp_path / "cut.safetensors"
    weights.save(whole, params)
    for length in (0, 5, 200, whole.stat().st_size - 1):
        cut.write_bytes(whole.read_bytes()[:length])
        assert "cannot be read" in refusal(cut, params)
    np.savez(tmp_path / "whole.npz", **flatten_dict(params, sep="/"))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:-30])
    (tmp_path / "pickle.npz").write_bytes(b"\x80\x04N.")
    np.savez(tmp_path / "objects.npz", a=np.array([{}, 1], dtype=object))
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "one.npy").rename(tmp_path / "one.npz")
    for name in ("cut.npz", "pickle.npz", "objects.npz", "one.npz"):
        assert "cannot be read" in refusal(tmp_path / name, params)
    with pytest.raises(UserError, match="is not a file"):
        weights.check(tmp_path / "none.safetensors")
    weights.check(whole)
