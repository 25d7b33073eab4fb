"""One's own arrays: every way to give them, and every mistake in one line."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedss_jax.data import arrays
from fedss_jax.types import UserError

OPTIONS = {
    "split": "test",
    "test": "",
    "task": "classification",
    "test_share": 0.25,
    "num_clients": 0,
    "labels_per_client": 2,
    "shift": 0,
    "flip": False,
    "seed": 0,
}


def example(classes: int = 6, per_class: int = 8, **changes) -> dict[str, np.ndarray]:
    """Pictures whose first pixel is their number; a change of None leaves the array out."""
    labels = np.arange(classes * per_class) % classes
    images = np.zeros((len(labels), 4, 5, 3), np.uint8)
    images[:, 0, 0, 0] = np.arange(len(labels))
    given = {"images": images, "labels": labels, **changes}
    return {name: array for name, array in given.items() if array is not None}


def save(path, form: str, values: dict[str, np.ndarray]) -> str:
    if form == "npz":
        np.savez(path.with_suffix(".npz"), **values)
        return str(path.with_suffix(".npz"))
    path.mkdir()
    for name, array in values.items():
        np.save(path / f"{name}.npy", array)
    return str(path)


def load(tmp_path, values=None, form: str = "npz", **options):
    train = save(tmp_path / "train", form, example() if values is None else values)
    return arrays.load(**{**OPTIONS, "train": train, **options})


def numbers(examples) -> np.ndarray:
    return examples.images[:][:, 0, 0, 0]


@pytest.mark.parametrize("form", ["npz", "folder"])
@pytest.mark.parametrize("split", ["test", "validation"])
def test_a_test_part_is_held_out(tmp_path, form, split):
    dataset = load(tmp_path, form=form, split=split)
    assert (dataset.name, dataset.task, dataset.num_classes) == ("arrays", "classification", 6)
    assert dataset.train.images.shape[1:] == (4, 5, 3) and dataset.train.images.dtype == np.uint8
    for part in (dataset.train, dataset.test):
        assert (numbers(part) % 6 == part.labels).all() and part.labels.dtype == np.int32
    train, test = set(numbers(dataset.train).tolist()), set(numbers(dataset.test).tolist())
    assert not train & test
    if split == "test":
        assert (len(train), len(test)) == (36, 12)
    else:  # held out of what is left when the test part is
        assert len(train) + len(test) == 36 and len(test) >= 2
    assert sorted(np.concatenate(dataset.clients).tolist()) == list(range(len(train)))
    assert (
        all(len(np.unique(dataset.train.labels[held])) == 2 for held in dataset.clients) and len(dataset.clients) == 3
    )


def test_retrieval_holds_out_classes(tmp_path):
    dataset = load(tmp_path, task="retrieval", test_share=0.34)
    assert dataset.num_classes == 4 and len(dataset.test) == 16
    assert not set((numbers(dataset.train) % 6).tolist()) & set((numbers(dataset.test) % 6).tolist())


@pytest.mark.parametrize("names", [[10, 20, -5, 7], ["d", "b", "a", "c"]])
def test_labels_of_any_kind_are_numbered_alike_in_both_parts(tmp_path, caplog, names):
    names = np.array(names)
    train = example(labels=names[np.arange(48) % 3])
    test = save(tmp_path / "test", "npz", example(1, 4, labels=names[[3, 0, 1, 2]]))
    dataset = load(tmp_path, train, test=test)
    order = np.sort(names[:3])
    assert (order[dataset.train.labels] == train["labels"]).all() and dataset.num_classes == 3
    assert numbers(dataset.test).tolist() == [1, 2, 3]  # the class that training lacks is left out
    assert (order[dataset.test.labels] == names[:3]).all()
    assert dataset.train.names == dataset.test.names == [str(name) for name in order]
    assert "1 test examples of 1 classes that training lacks were left out of 4" in caplog.messages[0]


def test_validation_is_of_the_training_part_even_if_there_is_a_test_part(tmp_path):
    test = save(tmp_path / "test", "npz", example(labels=np.arange(48) % 6))
    dataset = load(tmp_path, test=test, split="validation")
    assert len(dataset.train) + len(dataset.test) == 48
    assert not set(numbers(dataset.train).tolist()) & set(numbers(dataset.test).tolist())


def test_test_classes_of_retrieval_stand_for_themselves(tmp_path, caplog):
    test = save(tmp_path / "test", "npz", example(3, 4))
    dataset = load(tmp_path, test=test, task="retrieval")
    assert len(dataset.test) == 12 and len(np.unique(dataset.test.labels)) == 3 and dataset.num_classes == 6
    assert "3 labels are in both parts" in caplog.messages[0]
    assert dataset.train.name(5) == "5" and dataset.test.name(int(dataset.test.labels[0])) == "0"


@pytest.mark.parametrize("names", [[100, 3, -7, 50], ["zoe", "al", "bo", "cy"]])
def test_clients_of_any_kind(tmp_path, names):
    owners = np.array(names)[np.arange(48) // 12]
    dataset = load(tmp_path, example(clients=owners), num_clients=17)  # who holds what is given: that counts
    assert len(dataset.clients) == 4
    for owner, held in zip(np.unique(owners), dataset.clients, strict=True):
        assert (owners[numbers(dataset.train)[held]] == owner).all()


def test_pictures_become_numbers_from_minus_one_to_one(tmp_path):
    dataset = load(tmp_path, example(images=np.full((48, 4, 5), 255, np.uint8)))
    assert dataset.train.images.shape[1:] == (4, 5, 1)
    stored = jnp.asarray(dataset.train.images[0])
    assert (dataset.transform.test(stored) == 1).all() and dataset.transform.test(stored).dtype == jnp.float32
    assert (dataset.transform.train(jax.random.key(0), stored) == 1).all()


def test_pictures_can_be_shifted_and_mirrored(tmp_path):
    dataset = load(tmp_path, example(images=np.full((48, 4, 5), 255, np.uint8)), shift=2, flip=True)
    keys = jax.random.split(jax.random.key(0), 50)
    shifted = jax.vmap(dataset.transform.train, (0, None))(keys, jnp.asarray(dataset.train.images[0]))
    assert shifted.shape == (50, 4, 5, 1) and set(np.unique(shifted).tolist()) == {-1.0, 1.0}
    assert (dataset.transform.test(jnp.asarray(dataset.train.images[0])) == 1).all()


@pytest.mark.parametrize("form", ["npz", "folder"])
@pytest.mark.parametrize("dtype", ["float16", "float32", ">f4", "float64"])
def test_features_pass_through(tmp_path, form, dtype):
    features = np.random.default_rng(0).normal(size=(48, 7)).astype(dtype)
    dataset = load(tmp_path, example(images=None, features=features), form)
    assert dataset.train.images.shape == (36, 7) and dataset.train.images.dtype == np.float32
    row = jnp.asarray(dataset.train.images[:][0])
    assert (dataset.transform.train(jax.random.key(0), row) == row).all() and (dataset.transform.test(row) == row).all()
    assert np.isin(dataset.train.images[:], features.astype(np.float32)).all()


def test_arrays_of_a_folder_stay_on_disk(tmp_path):
    dataset = load(tmp_path, form="folder")
    assert isinstance(dataset.train.images._array, np.memmap)


def test_columns_that_are_not_ours_are_left_alone(tmp_path):
    assert load(tmp_path, example(names=np.array([{}], object))).num_classes == 6


FLOATS = np.zeros((48, 7), np.float32)
BAD_ROW = FLOATS.copy()
BAD_ROW[5, 2] = np.nan


@pytest.mark.parametrize("form", ["npz", "folder"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": None}, "must hold labels and either images or features; it holds images"),
        ({"images": None}, "must hold labels and either images or features; it holds labels"),
        ({"images": None, "labels": None}, "it holds none of them"),
        ({"features": FLOATS}, "either images or features; it holds features, images, labels"),
        ({"labels": np.arange(47)}, "has 47 labels, but 48 images; make them as many"),
        ({"clients": np.arange(49)}, "has 49 clients, but 48 images"),
        ({"labels": np.zeros(48)}, r"labels in .* are float64 \[48\]; they must be integers or strings \[N\]"),
        ({"labels": np.zeros((48, 1), int)}, r"labels in .* are int64 \[48, 1\]"),
        ({"labels": np.zeros(48, object)}, "holds Python objects, which are never loaded; save integers"),
        ({"clients": np.zeros(48, bool)}, "clients in .* are bool"),
        ({"images": np.zeros((48, 4, 5, 3))}, "images in .* are float64 .* must be uint8"),
        ({"images": np.zeros((48, 4), np.uint8)}, r"images in .* are uint8 \[48, 4\]"),
        ({"images": np.zeros((0, 4, 4), np.uint8), "labels": np.zeros(0, int)}, r"images in .* are uint8 \[0, 4, 4\]"),
        ({"images": np.zeros((), np.uint8)}, r"images in .* are uint8 \[\]"),
        ({"images": None, "features": np.zeros((48, 7), int)}, "features in .* are int64 .* must be float"),
        ({"images": None, "features": BAD_ROW}, "features in .* are not finite float32 numbers in row 5"),
        ({"images": None, "features": np.full((48, 7), 1e300)}, "not finite float32 numbers in row 0"),
    ],
)
def test_arrays_that_are_wrong(tmp_path, form, changes, message):
    with pytest.raises(UserError, match=message) as caught:
        load(tmp_path, example(**changes), form)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": ""}, "data.train is not set; set it to a .npz file or a folder"),
        ({"train": "/no/such.npz"}, "data.train is '/no/such.npz', which does not exist"),
        ({"test": "/no/such.npz"}, "data.test is '/no/such.npz', which does not exist"),
        ({"test_share": 0.0}, "data.test_share is 0.0; it must be between 0 and 1"),
        ({"test_share": 1.5}, "data.test_share is 1.5"),
        ({"num_clients": -1}, "data.num_clients is -1; it must be at least 0"),
        ({"labels_per_client": -1}, "data.labels_per_client is -1; it must be at least 0"),
        ({"shift": -1}, "data.shift is -1"),
        ({"shift": 4}, "data.shift is 4, but pictures have 4 pixels a side; lower it"),
        ({"seed": -1}, "data.seed is -1"),
        ({"task": "guess"}, "data.task is 'guess'; choose one of"),
        ({"split": "train"}, "eval.split is 'train'; choose one of"),
    ],
)
def test_options_that_are_wrong(tmp_path, options, message):
    with pytest.raises(UserError, match=message) as caught:
        load(tmp_path, **options)
    assert "\n" not in str(caught.value)


def test_features_are_neither_shifted_nor_mirrored(tmp_path):
    features = example(images=None, features=FLOATS)
    with pytest.raises(UserError, match="data.shift is 1, but the data are features, not pictures; set it to 0"):
        load(tmp_path, features, shift=1)
    with pytest.raises(UserError, match="data.flip is True, but the data are features, not pictures; set it to False"):
        load(tmp_path, features, flip=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"images": np.zeros((48, 9, 5, 3), np.uint8)},
            r"training examples are uint8 of shape \[4, 5, 3\], but test .*9",
        ),
        ({"images": None, "features": FLOATS}, r"but test examples are float32 of shape \[7\]; make them alike"),
        ({"labels": np.arange(48).astype(str)}, "training labels are integers, but test labels are strings"),
        ({"labels": np.arange(48) + 100}, "none of the 48 test examples is of one of the 6 training classes"),
    ],
)
def test_parts_that_do_not_fit(tmp_path, changes, message):
    test = save(tmp_path / "test", "npz", example(**changes))
    with pytest.raises(UserError, match=message):
        load(tmp_path, test=test)


def test_files_that_are_no_arrays(tmp_path):
    path = tmp_path / "some.npz"
    for content in (b"", b"hello", b"\x93NUMPY\x01\x00"):
        path.write_bytes(content)
        with pytest.raises(UserError, match="which is no .npz file; set it to"):
            load(tmp_path, train=str(path))
    good = save(tmp_path / "good", "npz", example())
    with open(good, "rb") as file:
        data = bytearray(file.read())
    data[100:140] = bytes(40)  # inside the first array
    path.write_bytes(data)
    with pytest.raises(UserError, match="some.npz' cannot be read"):
        load(tmp_path, train=str(path))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "images.npy").write_bytes(b"hello")
    with pytest.raises(UserError, match="images.npy' cannot be read"):
        load(tmp_path, train=str(folder))
