from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from fedss_jax.data.augment import Jitter, _noise, _resample, _slant

STILL = Jitter(shift=0.0, scale=0.0, slant=0.0, noise=0.0)


def picture():
    return jnp.full((32, 32, 1), -1.0).at[8:24, 12:18].set(1.0)


def centre(image):
    ink = np.asarray(image[..., 0]) + 1
    rows, columns = np.indices(ink.shape)
    return np.array([(rows * ink).sum(), (columns * ink).sum()]) / ink.sum()


def test_no_jitter_is_no_change():
    np.testing.assert_allclose(STILL(jax.random.key(0), picture()), picture(), atol=1e-6)


def test_shift_moves_and_scale_grows_by_hand():
    assert _resample(5, jnp.asarray(1.0), jnp.asarray(1.0)).tolist()[0] == [0, 1, 0, 0, 0]
    halfway = _resample(5, jnp.asarray(1.0), jnp.asarray(0.5))
    np.testing.assert_allclose(halfway[0], [0.5, 0.5, 0, 0, 0])
    shrunk = _resample(5, jnp.asarray(2.0), jnp.asarray(0.0))
    np.testing.assert_allclose(shrunk.sum(axis=1), [0, 1, 1, 1, 0])  # the outer pixels come from outside: background


def test_slant_shifts_rows_against_each_other():
    image = jnp.zeros((5, 9, 1)).at[:, 4].set(1.0)
    slanted = _slant(image, jnp.asarray(1.0), 1.0)[..., 0]
    assert np.argmax(slanted, axis=1).tolist() == [6, 5, 4, 3, 2]
    np.testing.assert_allclose(slanted.sum(axis=1), 1.0)


def test_amounts_are_bounded_and_used():
    jitter = Jitter(shift=2.0, scale=0.0, slant=0.0, noise=0.0)
    moved = jax.vmap(lambda key: jitter(key, picture()))(jax.random.split(jax.random.key(0), 64))
    offsets = np.array([centre(image) - centre(picture()) for image in moved])
    assert (np.abs(offsets) <= 2.0 + 1e-3).all()
    assert (np.abs(offsets).max(axis=0) > 1.5).all() and (offsets.min(axis=0) < 0).all()


def test_noise_has_the_asked_for_size_and_differs_between_pictures():
    noisy = jax.vmap(lambda key: Jitter(0.0, 0.0, 0.0, 0.2)(key, picture()))(jax.random.split(jax.random.key(0), 16))
    noise = np.asarray(noisy - picture())
    assert abs(noise.std() - 0.2) < 0.02 and abs(noise.mean()) < 0.02
    assert len({image.tobytes() for image in noise}) == 16
    assert _noise().std() > 0.9


def test_same_key_same_picture():
    a, b = (Jitter()(jax.random.key(7), picture()) for _ in range(2))
    c = Jitter()(jax.random.key(8), picture())
    assert (a == b).all() and not (a == c).all()
