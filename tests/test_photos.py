"""From an index to a data set: what is left out, what is refused, and how pictures are cropped."""

from __future__ import annotations

import io
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from fedss_jax.data import augment, photos
from fedss_jax.data.augment import CropFlip, ShiftFlip
from fedss_jax.data.index import Files, Index, Part
from fedss_jax.types import UserError

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
OPTIONS = {
    "name": "mine",
    "image_size": 8,
    "crop": 6,
    "flip": True,
    "on_bad_image": "skip",
    "max_bad_share": 0.5,
    "workers": 1,
}


def make(folder, missing=(), damaged=()) -> Index:
    """Ten training and four test pictures of one grey each, ten times their number."""
    folder.mkdir()
    names = [f"{number}.png" for number in range(14)]
    for number, name in enumerate(names):
        file = io.BytesIO()
        Image.new("L", (9, 7), 10 * number).save(file, "PNG")
        if number not in missing:
            (folder / name).write_bytes(b"GIF?" if number in damaged else file.getvalue())
    train = Part(np.arange(10)[::-1], np.repeat(np.arange(5), 2))
    clients = [np.array([0, 1, 2]), np.array([4, 3]), np.array([9, 5, 7]), np.array([6, 8])]
    test = Part(np.arange(10, 14), np.array([0, 0, 4, 4]))
    return Index("classification", 5, Files(folder, names), train, clients, test, ("2 pictures had two labels",))


def load(tmp_path, index: Index, **options):
    return photos.load(index, cache_dir=str(tmp_path / "cache"), **{**OPTIONS, **options})


def greys(examples) -> list[int]:
    return (examples.images[:][:, 0, 0, 0] // 10).tolist()


def test_everything_fits_together(tmp_path, caplog):
    dataset = load(tmp_path, make(tmp_path / "data"))
    assert (dataset.name, dataset.task, dataset.num_classes) == ("mine", "classification", 5)
    assert dataset.train.images.shape == (10, 8, 8, 3) and dataset.train.labels.dtype == np.int32
    assert greys(dataset.train) == list(range(10))[::-1] and greys(dataset.test) == [10, 11, 12, 13]
    assert [held.tolist() for held in dataset.clients] == [[0, 1, 2], [4, 3], [9, 5, 7], [6, 8]]
    assert caplog.messages == ["mine: 2 pictures had two labels"]
    stored = jnp.asarray(dataset.train.images[:2])
    assert dataset.transform.test(stored[0]).shape == (6, 6, 3)
    keys = jax.random.split(jax.random.key(0), 2)
    assert jax.vmap(dataset.transform.train)(keys, stored).shape == (2, 6, 6, 3)


def test_an_outline_opens_no_picture(tmp_path):
    index = make(tmp_path / "data", missing=range(14))
    dataset = photos.outline(index, cache_dir="", **OPTIONS)
    assert dataset.train.images.shape == (10, 8, 8, 3) and dataset.test.images.shape == (4, 8, 8, 3)
    assert [held.tolist() for held in dataset.clients] == [[0, 1, 2], [4, 3], [9, 5, 7], [6, 8]]
    assert dataset.train.labels.tolist() == index.train.labels.tolist()


def test_bad_pictures_are_left_out_everywhere(tmp_path, caplog):
    # Row r is at place 9 - r of the training part: client 1 loses all, and class 0 does too.
    dataset = load(tmp_path, make(tmp_path / "data", missing=(9, 8, 5), damaged=(6, 11)))
    assert greys(dataset.train) == [7, 4, 3, 2, 1, 0] and greys(dataset.test) == [10, 12, 13]
    assert dataset.train.labels.tolist() == [1, 2, 3, 3, 4, 4] and dataset.test.labels.tolist() == [0, 4, 4]
    assert dataset.num_classes == 5
    held = [[greys(dataset.train)[place] for place in client] for client in dataset.clients]
    assert held == [[7], [], [0, 4, 2], [3, 1]]
    said = caplog.messages[-1]
    assert caplog.records[-1].levelno == logging.WARNING and "\n" not in said
    assert "5 of 14 pictures cannot be used (3 missing, 2 not a picture): 5.png (missing), 6.png (not a picture" in said
    assert "bad_pictures.txt" in said


def test_a_bad_picture_that_is_mended_is_back(tmp_path):
    index = make(tmp_path / "data", missing=(9,))
    assert len(load(tmp_path, index).train) == 9
    Image.new("L", (9, 7), 90).save(tmp_path / "data" / "9.png")
    assert greys(load(tmp_path, index).train) == list(range(10))[::-1]


def test_bad_pictures_can_be_refused(tmp_path):
    index = make(tmp_path / "data", missing=(9, 3))
    with pytest.raises(UserError, match=r"2 of 14 .*: 3.png \(missing\).*; mend them, or set data.on_bad_image=skip"):
        load(tmp_path, index, on_bad_image="stop")
    with pytest.raises(
        UserError, match=r"9.png.*bad_pictures.txt; that is 14.29% of all, more than data.max_bad_share, 10.00%"
    ):
        load(tmp_path, index, max_bad_share=0.1)
    load(tmp_path, index, max_bad_share=2 / 14)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": 9}, "data.crop is 9, more than data.image_size, 8"),
        ({"crop": 0}, "data.crop is 0; it must be at least 1"),
        ({"image_size": 0}, "data.image_size is 0"),
        ({"workers": -1}, "data.workers is -1; it must be at least 0"),
        ({"max_bad_share": 1.5}, "data.max_bad_share is 1.5; it is a share of all pictures, from 0 to 1"),
        ({"max_bad_share": float("nan")}, "data.max_bad_share is nan"),
        ({"on_bad_image": "ignore"}, "data.on_bad_image is 'ignore'; choose one of skip, stop"),
    ],
)
def test_mistakes_are_one_line(tmp_path, options, message):
    with pytest.raises(UserError, match=message) as caught:
        load(tmp_path, make(tmp_path / "data"), **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "cache").exists()


def picture(height: int = 9, width: int = 7) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def standard(image: np.ndarray) -> np.ndarray:
    return (image / 255 - MEAN) / STD


def windows(image: np.ndarray, crop: int) -> dict[tuple[int, int, bool], np.ndarray]:
    found = {}
    for top in range(image.shape[0] - crop + 1):
        for left in range(image.shape[1] - crop + 1):
            window = image[top : top + crop, left : left + crop]
            found[top, left, False], found[top, left, True] = window, window[:, ::-1]
    return found


@pytest.mark.parametrize("flip", [True, False])
def test_crops_are_the_windows_of_the_picture_all_of_them(flip):
    image, crop = picture(), CropFlip(5, flip)
    keys = jax.random.split(jax.random.key(1), 400)
    cropped = np.asarray(jax.jit(jax.vmap(crop.train, (0, None)))(keys, image))
    assert cropped.shape == (400, 5, 5, 3) and cropped.dtype == np.float32
    known = {place: standard(window) for place, window in windows(image, 5).items() if flip or not place[2]}
    seen = set()
    for one in cropped:
        place = min(known, key=lambda place: np.abs(known[place] - one).max())
        np.testing.assert_allclose(one, known[place], atol=1e-5)
        seen.add(place)
    assert seen == set(known)


def test_tests_use_the_middle():
    image = picture()
    np.testing.assert_allclose(CropFlip(5, True).test(jnp.asarray(image)), standard(image[2:7, 1:6]), atol=1e-5)
    whole = picture(6, 6)
    np.testing.assert_allclose(CropFlip(6, False).test(jnp.asarray(whole)), standard(whole), atol=1e-5)
    same = CropFlip(6, False).train(jax.random.key(0), jnp.asarray(whole))
    np.testing.assert_allclose(same, standard(whole), atol=1e-5)


def test_both_ways_to_cut_are_the_same(monkeypatch):
    """On a TPU it is a product of matrices; exact for every value of a pixel."""
    image = jnp.asarray(np.arange(16 * 16 * 3).reshape(16, 16, 3) % 256, jnp.uint8)
    ways = {}

    def keep(*operands, **branches):
        ways.update(branches)
        return branches["default"](*operands)

    monkeypatch.setattr(jax.lax, "platform_dependent", keep)
    for top, left, mirror in ((0, 0, False), (3, 5, True), (4, 6, False)):
        operands = (image, jnp.asarray(top), jnp.asarray(left), jnp.asarray(mirror))
        augment._cut(*operands, 12, 10)
        np.testing.assert_array_equal(ways["tpu"](*operands), ways["default"](*operands))


def test_shifts_move_the_picture_over_black():
    image = picture(4, 5)
    padded = np.pad(image, ((2, 2), (2, 2), (0, 0)))
    known = {}
    for top in range(5):
        for left in range(5):
            window = padded[top : top + 4, left : left + 5] / 127.5 - 1
            known[top, left, False], known[top, left, True] = window, window[:, ::-1]
    keys = jax.random.split(jax.random.key(1), 600)
    seen = set()
    for one in np.asarray(jax.vmap(ShiftFlip(2, True).train, (0, None))(keys, jnp.asarray(image))):
        place = min(known, key=lambda place: np.abs(known[place] - one).max())
        np.testing.assert_allclose(one, known[place], atol=1e-6)
        seen.add(place)
    assert seen == set(known)
    np.testing.assert_allclose(ShiftFlip(2, True).test(jnp.asarray(image)), image / 127.5 - 1, atol=1e-6)
