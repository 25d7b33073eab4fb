"""Sources of pictures: small copies of every layout, and whatever can be wrong with them."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import layouts
import numpy as np
import pytest

from fedss_jax.data import folder, imagenet21k, landmarks, records, sop, tfds_source
from fedss_jax.data import index as data_index
from fedss_jax.data.index import BadImage, Files, Index, packed
from fedss_jax.types import UserError


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FEDSS_CACHE", str(folder))
    return folder


def with_defaults(index, **defaults):
    def call(**options) -> Index:
        found = index(**(defaults | options))
        check(found)
        return found

    return call


DEAL = dict(num_clients=0, labels_per_client=2, seed=0, split="test")
load_sop = with_defaults(sop.index, **DEAL, download=False, cache_dir="")
load_landmarks = with_defaults(landmarks.index, name="landmarks_user_160k", split="test", images="", seed=0)
load_synsets = with_defaults(imagenet21k.index, **DEAL, cache_dir="")
load_folder = with_defaults(
    folder.index, **DEAL, csv="", test_csv="", task="classification", test_share=0.2, cache_dir=""
)
load_tfds = with_defaults(
    tfds_source.index,
    **DEAL,
    dataset="shapes",
    train_split="train",
    test_split="test",
    image_key="image",
    label_key="label",
    client_key="",
    task="classification",
    download=False,
    cache_dir="",
)


def check(index: Index) -> None:
    """What must hold for every source."""
    for part in (index.train, index.test):
        assert part.labels.dtype == np.int32 and len(part.rows) == len(part.labels)
        assert part.rows.min() >= 0 and part.rows.max() < len(index.pictures)
    assert set(index.train.labels) <= set(range(index.num_classes))
    if index.task == "classification":
        assert set(index.test.labels) <= set(range(index.num_classes))
    assert sorted(np.concatenate(index.clients)) == list(range(len(index.train.labels)))
    assert all("\n" not in note for note in index.notes)


def contents(index: Index, part: str = "train") -> list[tuple[bytes, int]]:
    """Pictures and labels of a part, in order."""
    rows, labels = getattr(index, part)
    return [(index.pictures.read(int(row)), int(label)) for row, label in zip(rows, labels)]


def names(index: Index, part: str = "train") -> list[str]:
    return [index.pictures.name(int(row)) for row in getattr(index, part).rows]


def refuses(load, message: str, **options) -> None:
    """The error has one line, and says so."""
    with pytest.raises(UserError, match=message) as error:
        load(**options)
    assert "\n" not in str(error.value)


# Stanford Online Products


@pytest.fixture
def archive(tmp_path) -> Path:
    return layouts.sop_archive(tmp_path / "sop" / "Stanford_Online_Products")


def test_both_readers_of_stanford_online_products_agree(archive, tmp_path):
    prepared = layouts.sop_prepared(tmp_path / "tfds", archive)
    roots = [archive, archive.parent, prepared, prepared.parent, tmp_path / "tfds"]
    for split in ("test", "validation"):
        found = [load_sop(root=str(root), split=split, num_clients=5, labels_per_client=2) for root in roots]
        assert isinstance(found[0].pictures, Files) and isinstance(found[-1].pictures, records.Records)
        first = found[0]
        assert first.task == "retrieval" and first.num_classes == (6 if split == "test" else 5)
        for other in found[1:]:
            assert contents(other) == contents(first) and contents(other, "test") == contents(first, "test")
            assert [held.tolist() for held in other.clients] == [held.tolist() for held in first.clients]
            assert other.num_classes == first.num_classes
    assert load_sop(root=str(archive)).num_classes == 6


def test_without_a_folder_the_librarys_own_is_looked_at(archive, tmp_path, monkeypatch):
    from tensorflow_datasets.core import constants

    monkeypatch.setattr(constants, "DATA_DIR", str(tmp_path / "own"))
    refuses(load_sop, "is not in TensorFlow Datasets' own folder .data.root is not set.; set data.root", root="")
    layouts.sop_prepared(tmp_path / "own", archive)
    assert load_sop(root="").num_classes == 6


def test_stanford_online_products_by_hand(archive):
    index = load_sop(root=str(archive), num_clients=3, labels_per_client=2)
    assert np.bincount(index.train.labels).tolist() == [3, 5, 4, 2, 6, 5]
    assert np.bincount(index.test.labels).tolist() == [4, 3, 5]
    assert {len(np.unique(index.train.labels[held])) for held in index.clients} == {2}
    # Class 1 (from 1) is label 0; its files are named 899_*.
    assert {name for name, label in zip(names(index), index.train.labels) if label == 0} == {
        f"chair_final/899_{view}.JPG" for view in range(3)
    }


def test_tuning_on_stanford_online_products_leaves_its_test_part_alone(archive):
    test, validation = load_sop(root=str(archive)), load_sop(root=str(archive), split="validation")
    assert test.pictures.fingerprint() == validation.pictures.fingerprint()  # one store serves both
    assert set(names(validation)) | set(names(validation, "test")) == set(names(test))
    assert not set(names(validation)) & set(names(validation, "test"))


def test_the_order_is_found_once_and_missing_pictures_are_looked_for_again(archive, cache, monkeypatch):
    complete = contents(load_sop(root=str(archive)))
    path = archive / "chair_final" / "899_1.JPG"
    data = path.read_bytes()
    real, reads = Files.read, []
    monkeypatch.setattr(Files, "read", lambda files, row: reads.append(row) or real(files, row))
    load_sop(root=str(archive))
    assert reads == []
    for file in cache.glob("digests-*"):
        file.unlink()
    path.unlink()
    index = load_sop(root=str(archive))
    assert len(reads) == 37
    with pytest.raises(BadImage, match="^missing$"):
        contents(index)
    path.write_bytes(data)
    reads.clear()
    index = load_sop(root=str(archive))
    assert len(reads) == 1 and contents(index) == complete


def test_records_travel_to_other_processes_and_threads(archive, tmp_path):
    prepared = layouts.sop_prepared(tmp_path / "tfds", archive)
    pictures = load_sop(root=str(prepared)).pictures
    expected = [pictures.read(row) for row in range(len(pictures))]
    copy = pickle.loads(pickle.dumps(pictures))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(copy.read, range(len(copy)))) == expected
    assert copy.fingerprint() == pictures.fingerprint() != pictures.take(np.arange(3)).fingerprint()
    assert pictures.name(0).startswith("stanford_online_products train record ")
    (tmp_path / "pictures").write_bytes(pickle.dumps(pictures))
    child = (
        "import pickle, sys, hashlib; p = pickle.load(open(sys.argv[1], 'rb'));"
        "print(hashlib.sha256(b''.join(p.read(r) for r in range(len(p)))).hexdigest(), 'tensorflow' in sys.modules)"
    )
    run = [sys.executable, "-c", child, str(tmp_path / "pictures")]
    out = subprocess.run(run, capture_output=True, text=True, check=True, cwd=Path(__file__).parent.parent)
    assert out.stdout.split() == [hashlib.sha256(b"".join(expected)).hexdigest(), "False"]
    assert "tensorflow" not in sys.modules


def test_damaged_records_are_bad_images(archive, tmp_path, cache):
    prepared = layouts.sop_prepared(tmp_path / "tfds", archive)
    pictures = load_sop(root=str(prepared)).pictures
    fresh = pickle.loads(pickle.dumps(pictures))
    (shard,) = prepared.glob("*train.array_record*")
    data = np.frombuffer(shard.read_bytes(), np.uint8).copy()
    data[3000:9000] ^= 0x55
    shard.write_bytes(data.tobytes())
    outcomes = set()
    for row in range(25):
        try:
            outcomes.add(fresh.read(row)[:3].hex())
        except BadImage as bad:
            outcomes.add(str(bad)[:14])
    assert outcomes == {"ffd8ff", "cannot be read"}
    for file in cache.glob("records-*"):
        file.unlink()
    refuses(load_sop, "train record .* cannot be read: Corrupted .*; prepare it again", root=str(prepared))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "image_id class_id",
            "image_id klass",
            "header 'image_id class_id super_class_id path', but begins with 'imag",
        ),
        ("\n2 1 2 ", "\n2 one 2 ", "Ebay_train.txt line 3 has class_id 'one'; it must be a whole number"),
        ("\n2 1 2 ", "\n2 -1 2 ", "line 3 has class_id '-1'"),
        ("\n2 1 2 ", "\n2 1 ", "Ebay_train.txt line 3 has 3 fields, but the header has 4; complete it"),
        ("chair_final/899_1", "../899_1", "line 3 has path '../899_1.JPG'; it must be a path below the data folder"),
        (
            "chair_final/899_1.JPG",
            "chair_final/899_0.JPG\n9 2 2 chair_final/899_0.JPG",
            "lines 2 and 4 give .* '1' and",
        ),
    ],
)
def test_bad_lines_of_stanford_online_products(archive, old, new, message):
    edit(archive / "Ebay_train.txt", old, new)
    refuses(load_sop, message, root=str(archive))


def test_what_else_can_be_wrong_with_stanford_online_products(archive, tmp_path):
    three_ways = "unpacked archive .*Ebay_train.txt.*TensorFlow Datasets prepared it.*data.download=True"
    refuses(load_sop, three_ways, root=str(tmp_path / "nowhere"))
    refuses(load_sop, three_ways, root=str(archive / "chair_final"))
    refuses(load_sop, "data.num_clients to 3", root=str(archive), num_clients=2)
    refuses(load_sop, "eval.split is 'train'; choose one of test, validation", root=str(archive), split="train")
    edit(archive / "Ebay_test.txt", " 7 ", " 6 ")
    refuses(load_sop, "1 of the 4 test classes are training classes too", root=str(archive))
    for picture in archive.rglob("*.JPG"):
        picture.unlink()
    refuses(load_sop, "none of the first pictures that Ebay_train.txt names is in", root=str(archive))
    (archive / "Ebay_test.txt").unlink()
    refuses(load_sop, "cannot read .*Ebay_test.txt: No such file", root=str(archive))


def test_repeated_lines_are_left_out(archive):
    lines = (archive / "Ebay_train.txt").read_text()
    (archive / "Ebay_train.txt").write_text(lines + lines.splitlines()[-1] + "\n")
    index = load_sop(root=str(archive))
    assert len(index.train.rows) == 25
    assert index.notes == ("1 repeated lines of Ebay_train.txt were left out",)


@pytest.mark.parametrize("error", [ModuleNotFoundError("No module named 'importlib_resources'"), OSError("no\nroute")])
def test_a_download_that_fails_is_told_in_a_line(tmp_path, monkeypatch, error):
    import tensorflow_datasets as tfds

    class Builder:
        def download_and_prepare(self):
            raise error

    monkeypatch.setattr(tfds, "builder", lambda *args, **options: Builder())
    message = (
        "cannot prepare 'stanford_online_products' .*it needs a network, and most .*tensorflow importlib_resources"
    )
    refuses(load_sop, message, root=str(tmp_path / "new"), download=True)


def test_a_download_that_works_is_used(archive, tmp_path, monkeypatch):
    import tensorflow_datasets as tfds

    class Builder:
        data_dir = str(layouts.sop_prepared(tmp_path / "tfds", archive))

        def download_and_prepare(self):
            pass

    def builder(name, *, file_format, data_dir):
        assert (name, file_format, data_dir) == ("stanford_online_products", "array_record", tmp_path / "new")
        return Builder()

    monkeypatch.setattr(tfds, "builder", builder)
    assert load_sop(root=str(tmp_path / "new"), download=True).num_classes == 6


# Landmarks


@pytest.mark.parametrize(
    ("images", "option"), [("", ""), ("images", ""), ("train", ""), ("pics", "pics"), ("../x", "../x")]
)
@pytest.mark.parametrize("nested", [False, True])
def test_landmarks_pictures_are_found(tmp_path, images, option, nested):
    root = layouts.landmarks(tmp_path / "gld", images=images, nested=nested)
    index = load_landmarks(root=str(root), images=option)
    assert index.task == "classification" and index.num_classes == 5
    assert [len(held) for held in index.clients] == [3, 5, 7, 9]
    assert index.train.labels[:3].tolist() == [0, 1, 2] and index.test.labels.tolist() == [0, 1, 2, 3, 4] * 2
    expected = [(layouts.jpeg(i), int(label)) for i, label in enumerate(index.train.labels)]
    assert contents(index) == expected
    assert index.notes == ()


@pytest.mark.parametrize(
    ("name", "tables"),
    [
        ("gld23k", ("mini_gld_train_split.csv", "mini_gld_test.csv")),
        ("gld23k", ("data_user_dict/gld23k_user_dict_train.csv", "data_user_dict/gld23k_user_dict_test.csv")),
        ("gld23k", ("federated_train.csv", "test.csv")),
        (
            "landmarks_user_160k",
            ("data_user_dict/gld160k_user_dict_train.csv", "data_user_dict/gld160k_user_dict_test.csv"),
        ),
    ],
)
def test_landmarks_tables_have_several_names(tmp_path, name, tables):
    root = layouts.landmarks(tmp_path, images="images", tables=tables)
    assert len(load_landmarks(name=name, root=str(root)).clients) == 4


def test_both_landmarks_in_one_folder_are_told_apart(tmp_path):
    layouts.landmarks(tmp_path, tables=("mini_gld_train_split.csv", "mini_gld_test.csv"), classes=(0, 1, 2))
    layouts.landmarks(tmp_path)
    assert load_landmarks(name="gld23k", root=str(tmp_path)).num_classes == 3
    assert load_landmarks(root=str(tmp_path)).num_classes == 5


def test_landmark_classes_with_gaps_are_numbered_anew(tmp_path):
    layouts.landmarks(tmp_path, classes=(7, 3, 100))
    index = load_landmarks(root=str(tmp_path))
    assert index.num_classes == 3 and index.train.labels[:3].tolist() == [1, 0, 2]
    assert index.notes == ("the 3 classes, 3 to 100, were numbered from 0 without gaps",)


def test_tuning_on_landmarks_keeps_users_and_classes(tmp_path):
    layouts.landmarks(tmp_path)
    index, test = load_landmarks(root=str(tmp_path), split="validation"), load_landmarks(root=str(tmp_path))
    assert index.num_classes == 5
    assert set(names(index, "test")) < set(names(test))
    owner = {name: i for i, held in enumerate(test.clients) for name in np.array(names(test))[held]}
    for i, held in enumerate(index.clients):
        assert {owner[name] for name in np.array(names(index))[held]} == {i}


@pytest.mark.parametrize(
    ("table", "old", "new", "message"),
    [
        ("federated_train.csv", "user_id,", "user,", "header 'user_id,image_id,class', but begins with 'user,image_id"),
        ("test.csv", "image_id,class", "image_id;class", "header 'image_id,class', but begins with 'image_id;class'"),
        ("federated_train.csv", ",0\n", ",zero\n", "federated_train.csv line 2 has class 'zero'; it must be a whole"),
        ("federated_train.csv", ",1\n", ",1.5\n", "line 3 has class '1.5'"),
        ("federated_train.csv", ",1\n", "\n", "line 3 has 2 fields, but the header has 3; complete it"),
        ("federated_train.csv", ",1\n", ",\n", "line 3 has an empty class; fill it in"),
        ("test.csv", "0000", "../", "test.csv line 2 has image_id '../.*; it must be a plain name"),
        ("test.csv", "0000", "/etc/", "test.csv line 2 has image_id '/etc/"),
        ("test.csv", "0000", "\0", "test.csv line 2 has a zero byte in its image_id"),
        ("federated_train.csv", "\nuser0", "\nuser0,0000000000000000,4\nuser0", "lines 2 and 3 give .* '4' and '0'"),
    ],
)
def test_bad_landmarks_tables(tmp_path, table, old, new, message):
    layouts.landmarks(tmp_path)
    edit(tmp_path / table, old, new)
    refuses(load_landmarks, message, root=str(tmp_path))


def test_what_else_can_be_wrong_with_landmarks(tmp_path):
    refuses(load_landmarks, "data.root is not set; set it to the folder with federated_train.csv", root="")
    refuses(load_landmarks, "data.root is '.*nowhere', which is no folder", root=str(tmp_path / "nowhere"))
    refuses(load_landmarks, "TensorFlow Federated's gldv2 .*Google Landmarks Dataset v2", root=str(tmp_path))
    layouts.landmarks(tmp_path, images="elsewhere")
    where = "none of the first 34 pictures .*<id>.jpg or a/b/c/<id>.jpg; set data.images"
    refuses(load_landmarks, where, root=str(tmp_path))
    assert load_landmarks(root=str(tmp_path), images=str(tmp_path / "elsewhere"))
    (tmp_path / "test.csv").write_bytes(b"image_id,class\n\xff\xfe,1\n")
    refuses(load_landmarks, "test.csv is not UTF-8 .a byte is 0xff.; save it as UTF-8", root=str(tmp_path))
    (tmp_path / "test.csv").write_bytes(b"")
    refuses(load_landmarks, "test.csv is empty; it must begin with the header", root=str(tmp_path))
    (tmp_path / "test.csv").write_text("image_id,class\n")
    refuses(load_landmarks, "test.csv has a header but no rows", root=str(tmp_path))
    (tmp_path / "test.csv").unlink()
    refuses(load_landmarks, "cannot read .*test.csv: No such file", root=str(tmp_path))


# ImageNet-21k


def test_synsets(tmp_path):
    root = layouts.class_folders(tmp_path / "in21k", {f"n{i:08}": 4 + i for i in range(6)}, ".JPEG")
    layouts.write(root / "n00000000" / "words.txt", "x")
    (root / "n99999999").mkdir()
    index = load_synsets(root=str(root), num_clients=4, labels_per_client=3)
    assert index.task == "classification" and index.num_classes == 6 and len(index.clients) == 4
    fifth = np.bincount(index.test.labels, minlength=6) - (4 + np.arange(6)) / 5
    assert np.all(np.abs(fifth) < 1)  # up or down to a whole number
    assert len(index.train.rows) + len(index.test.rows) == 39
    for part in ("train", "test"):
        assert [int(name[1:9]) for name in names(index, part)] == getattr(index, part).labels.tolist()
    assert len(index.notes) == 2 and "n99999999" in index.notes[1]
    validation = load_synsets(root=str(root), split="validation")
    assert not set(names(validation, "test")) & set(names(index, "test"))
    assert not set(names(validation)) & set(names(index, "test"))


def test_no_synsets(tmp_path):
    refuses(load_synsets, "data.root is not set; set it to the folder with a folder of pictures", root="")
    layouts.write(tmp_path / "data" / "n01440764.tar", "x")
    refuses(load_synsets, "has no folders; unpack each synset's archive", root=str(tmp_path / "data"))


# Folders and tables of one's own


@pytest.mark.parametrize("extension", [".jpg", ".JPEG", ".png", ".webp", ".bmp", ".GIF", ".tif", ".Tiff"])
def test_class_folders(tmp_path, extension):
    root = layouts.class_folders(tmp_path / "mine", {"10": 5, "9": 6, "cat": 10}, extension)
    index = load_folder(root=str(root))
    assert index.num_classes == 3 and len(index.clients) == 2
    label = {"9": 0, "10": 1, "cat": 2}
    for part in ("train", "test"):
        assert [label[name.split("/")[0]] for name in names(index, part)] == getattr(index, part).labels.tolist()
    assert np.bincount(index.test.labels).tolist() in ([1, 1, 2], [2, 1, 2])  # a fifth of 6, 5 and 10
    assert index.train_names == index.test_names == ["9", "10", "cat"]


def test_folders_with_parts(tmp_path):
    layouts.class_folders(tmp_path / "train", {"a": 4, "b": 5, "c": 3})
    layouts.class_folders(tmp_path / "val", {"a": 2, "c": 1, "d": 3}, first=50)
    index = load_folder(root=str(tmp_path))
    assert np.bincount(index.train.labels).tolist() == [4, 5, 3]
    assert names(index, "test") == ["val/a/a_0.jpg", "val/a/a_1.jpg", "val/c/c_0.jpg"]
    assert index.test.labels.tolist() == [0, 0, 2]
    assert index.notes == ("3 test examples of 1 classes that training lacks were left out of 6",)
    # With a test part besides, val is what to tune on, and nothing is held out of the training part.
    layouts.class_folders(tmp_path / "test", {"b": 2}, first=60)
    layouts.class_folders(tmp_path / "more", {"b": 2}, first=70)
    index, tuning = load_folder(root=str(tmp_path)), load_folder(root=str(tmp_path), split="validation")
    assert names(index, "test") == ["test/b/b_0.jpg", "test/b/b_1.jpg"]
    assert names(tuning, "test") == ["val/a/a_0.jpg", "val/a/a_1.jpg", "val/c/c_0.jpg"]
    assert names(tuning) == names(index) and tuning.pictures.fingerprint() == index.pictures.fingerprint()
    assert index.notes == ("folders beside train and test and val were not read: more",)


def test_a_training_folder_alone_is_split(tmp_path):
    layouts.class_folders(tmp_path / "train", {"a": 10, "b": 10})
    index = load_folder(root=str(tmp_path))
    assert len(index.test.labels) == 4 and index.num_classes == 2


def test_retrieval_from_folders(tmp_path):
    layouts.class_folders(tmp_path / "flat", {f"c{i}": 3 for i in range(10)})
    index = load_folder(root=str(tmp_path / "flat"), task="retrieval", test_share=0.3)
    assert index.num_classes == 7 and np.bincount(index.test.labels).tolist() == [3, 3, 3]
    layouts.class_folders(tmp_path / "parts" / "train", {"a": 4, "b": 4})
    layouts.class_folders(tmp_path / "parts" / "test", {"c": 4, "d": 4})
    index = load_folder(root=str(tmp_path / "parts"), task="retrieval")
    assert index.num_classes == 2 and np.bincount(index.test.labels).tolist() == [4, 4]
    assert index.train_names == ["a", "b"] and index.test_names == ["c", "d"]
    nothing = "none of the 8 test examples is of one of the 2 training classes; .*data.task=retrieval"
    refuses(load_folder, nothing, root=str(tmp_path / "parts"))
    layouts.class_folders(tmp_path / "parts" / "test", {"b": 1})
    refuses(load_folder, "1 of the 3 test classes", root=str(tmp_path / "parts"), task="retrieval")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "sorting"}, "data.task is 'sorting'; choose one of"),
        ({"test_share": 1.5}, "data.test_share is 1.5; it must be between 0 and 1"),
        ({"seed": -1}, "data.seed is -1; it must be at least 0"),
        ({"labels_per_client": 9}, "data.labels_per_client is 9, but there are 2 training classes; lower it"),
        ({"test_csv": "x.csv"}, "data.test_csv is 'x.csv', but data.csv is not set"),
        ({"csv": "x.csv"}, "cannot read .*x.csv: No such file"),
    ],
)
def test_bad_options_of_a_folder(tmp_path, options, message):
    layouts.class_folders(tmp_path / "mine", {"a": 5, "b": 5})
    refuses(load_folder, message, root=str(tmp_path / "mine"), **options)


def test_folders_without_classes(tmp_path):
    refuses(load_folder, "data.root is not set; set it to a folder with a folder for each class", root="")
    layouts.write(tmp_path / "flat" / "x.jpg", layouts.jpeg(0))
    refuses(load_folder, "has no folders in it; it must be a folder with", root=str(tmp_path / "flat"))
    layouts.class_folders(tmp_path / "parts" / "train", {"a": 2, "b": 2})
    layouts.write(tmp_path / "parts" / "test" / "x.jpg", layouts.jpeg(0))
    refuses(load_folder, "parts/test has no pictures .* in folders for classes", root=str(tmp_path / "parts"))


@pytest.mark.parametrize("change", ["plain", "spreadsheet", "reordered", "quoted"])
def test_a_table_of_clients(tmp_path, change):
    path = layouts.client_table(tmp_path)
    rows = [line.split(",") for line in path.read_text().splitlines()]
    if change == "spreadsheet":
        path.write_bytes(b"\xef\xbb\xbf" + "".join(",".join(row) + "\r\n" for row in rows).encode() + b"\r\n")
    if change == "reordered":
        path.write_text("".join(f"{label},x, {image},{client}\n" for client, image, label in rows))
    if change == "quoted":
        path.write_text("".join(",".join(f'"{value}"' for value in row) + "\n" for row in rows))
    index = load_folder(root=str(tmp_path), csv="clients.csv")
    assert index.num_classes == 4 and len(index.clients) == 3
    label = {3: 3, 2: 2, 0: 1, 1: 0}  # 9 before 10 before ball before cup
    number = {layouts.jpeg(i): i for i in range(24)}
    for part in ("train", "test"):
        assert all(label[number[data] % 4] == found for data, found in contents(index, part))
    for client, held in enumerate(index.clients):
        assert {number[contents(index)[i][0]] % 3 for i in held} == {client}
    assert set(np.bincount(index.test.labels)) <= {1, 2} and index.notes == ()  # a fifth of 6


def test_a_test_table(tmp_path):
    layouts.client_table(tmp_path)
    layouts.write(tmp_path / "t" / "1.jpg", layouts.jpeg(90))
    table = layouts.write(
        tmp_path / "tests.csv", "image,label,client\nt/1.jpg,cup,x\nphotos/0.jpg,10,x\nt/2.jpg,new,x\n"
    )
    index = load_folder(root=str(tmp_path), csv=str(tmp_path / "clients.csv"), test_csv="tests.csv")
    assert index.test.labels.tolist() == [3, 1] and len(index.train.labels) == 24
    assert index.notes == (
        "1 pictures are in both the training and the test part",
        "1 test examples of 1 classes that training lacks were left out of 3",
    )
    table.write_text("image,label\nt/1.jpg,cup\nt/1.jpg,ball\n")
    two = "tests.csv lines 2 and 3 give 't/1.jpg' the label 'cup' and 'ball'; delete one"
    refuses(load_folder, two, root=str(tmp_path), csv="clients.csv", test_csv="tests.csv")


def test_one_picture_at_several_clients_and_repeated_rows(tmp_path):
    path = layouts.client_table(tmp_path)
    text = path.read_text()
    path.write_text(text + "client1,photos/0.jpg,10\nclient0,photos/0.jpg,10\nclient2,photos/0.jpg,ball\n")
    layouts.write(tmp_path / "tests.csv", "image,label\nphotos/1.jpg,9\n")
    index = load_folder(root=str(tmp_path), csv="clients.csv", test_csv="tests.csv")
    assert len(index.train.rows) == 26 and len(index.pictures) == 24
    assert [len(held) for held in index.clients] == [8, 9, 9]
    assert index.notes[0] == "1 repeated lines of clients.csv were left out"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("client,image,label", "client,file,label", "header 'client,image,label', but begins with 'client,file,label'"),
        ("client,image,label\n", "", "header 'client,image,label', but begins with 'client0,photos/0.jpg,10'"),
        ("photos/3.jpg,cup", "photos/3.jpg", "clients.csv line 5 has 2 fields, but the header has 3; complete it"),
        ("photos/3.jpg", "photos/3,5.jpg", "line 5 has 4 fields, but the header has 3; put quotes around"),
        ("photos/3.jpg", "photos/../../3.jpg", "line 5 has image 'photos/../../3.jpg'; it must be a path below"),
        ("photos/3.jpg", "..\\\\3.jpg", "line 5 has image"),
        ("photos/3.jpg", "/etc/passwd", "line 5 has image '/etc/passwd'; it must be a path below the data folder"),
        ("photos/3.jpg", "C:\\\\3.jpg", "line 5 has image 'C:"),
        ("photos/3.jpg", "photos/\0", "line 5 has a zero byte in its image"),
        ("client0,photos/3", ",photos/3", "line 5 has an empty client"),
        (
            "client1,photos/4.jpg,10",
            "client1,photos/1.jpg,10",
            "lines 3 and 6 give 'client1 photos/1.jpg' the label '9'",
        ),
    ],
)
def test_bad_tables(tmp_path, old, new, message):
    path = layouts.client_table(tmp_path)
    edit(path, old, new)
    refuses(load_folder, message, root=str(tmp_path), csv="clients.csv")


def test_tables_of_other_kinds(tmp_path):
    path = layouts.client_table(tmp_path)
    text = path.read_text()
    path.write_bytes(text.encode("utf-16"))
    refuses(load_folder, "clients.csv is not UTF-8 .a byte is 0xff.", root=str(tmp_path), csv="clients.csv")
    path.write_bytes(b"\n\n")
    refuses(load_folder, "clients.csv is empty", root=str(tmp_path), csv="clients.csv")
    path.write_text('client,image,label\na,"' + "x" * 200_000 + '",c\n')
    refuses(load_folder, "clients.csv line 2 cannot be read: field larger", root=str(tmp_path), csv="clients.csv")
    refuses(load_folder, "cannot read .*photos: Is a directory", root=str(tmp_path), csv="photos")
    path.write_text(text.replace("photos/", "fotos/"))
    refuses(
        load_folder,
        "none of the first 24 images of .*clients.csv is below data.root",
        root=str(tmp_path),
        csv=path.name,
    )


def test_nothing_outside_the_folder_is_read(tmp_path):
    layouts.write(tmp_path / "secret.jpg", layouts.jpeg(1))
    layouts.write(tmp_path / "root" / "a.jpg", layouts.jpeg(2))
    (tmp_path / "root" / "out.jpg").symlink_to(tmp_path / "secret.jpg")
    (tmp_path / "root" / "loop.jpg").symlink_to("loop.jpg")
    (tmp_path / "root" / "in.jpg").symlink_to("a.jpg")
    listed = [
        "a.jpg",
        "in.jpg",
        "out.jpg",
        "../secret.jpg",
        str(tmp_path / "secret.jpg"),
        "b.jpg",
        "a.jpg/b",
        "loop.jpg",
    ]
    for files in (Files(tmp_path / "root", listed), Files(tmp_path / "root", packed(listed))):
        outcomes = []
        for row in range(len(files)):
            try:
                assert files.read(row) == layouts.jpeg(2)
                outcomes.append("read")
            except BadImage as bad:
                outcomes.append(str(bad).split(" (")[0])
        outside = "leads outside the data folder"
        assert outcomes[:-1] == ["read", "read", outside, outside, outside, "missing", "missing"]
        assert outcomes[-1] == "cannot be read"
    with pytest.raises(BadImage, match="cannot be read"):
        Files(tmp_path / "root", ["a\0.jpg"]).read(0)


# TensorFlow Datasets by name


@pytest.fixture
def shapes(tmp_path) -> Path:
    layouts.shapes_prepared(tmp_path / "tfds")
    return tmp_path / "tfds"


@pytest.mark.parametrize("dataset", ["shapes", "shapes:1.0.0", "shapes:1.*.*"])
def test_a_data_set_by_name(shapes, dataset):
    index = load_tfds(data_dir=str(shapes), dataset=dataset)
    number = {layouts.jpeg(i): i for i in range(32)}
    assert index.num_classes == 4 and len(index.clients) == 2
    for part, size in (("train", 24), ("test", 8)):
        found = contents(index, part)
        assert len(found) == size and all(number[data] % 4 == label for data, label in found)
    assert "tensorflow" not in sys.modules


def test_owners_texts_as_labels_and_parts_of_splits(shapes):
    options = dict(data_dir=str(shapes), client_key="user", label_key="title", train_split="train[:50%]", test_split="")
    index = load_tfds(**options)
    assert len(index.pictures) == 12 and len(index.clients) == 3 and index.num_classes == 4
    number = {layouts.jpeg(i): i for i in range(32)}
    for client, held in enumerate(index.clients):
        assert {number[contents(index)[i][0]] % 3 for i in held} <= {client}
    again = load_tfds(**options)
    assert contents(again) == contents(index)


def test_records_are_read_once_for_their_labels(shapes, monkeypatch):
    load_tfds(data_dir=str(shapes))
    monkeypatch.setattr(records, "progress", None)
    load_tfds(data_dir=str(shapes))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "shape"}, "data set 'shape' is not prepared in .*; correct data.dataset"),
        ({"dataset": "shapes:2.0.0"}, "data set 'shapes:2.0.0' is not prepared in"),
        ({"dataset": "a:b:c"}, "data set 'a:b:c' is not prepared in"),
        ({"dataset": ""}, "data.dataset is not set; set it to a name of TensorFlow Datasets, such as cifar10"),
        ({"dataset": "no_such_set", "download": True}, "does not know 'no_such_set': Dataset no_such_set not found"),
        ({"train_split": "training"}, "cannot read split 'training' of .*; its splits: train, test"),
        ({"test_split": "val"}, "cannot read split 'val' .*; its splits: train, test"),
        ({"train_split": ""}, "data.train_split is not set"),
        ({"image_key": "picture"}, "data.image_key is 'picture', which records do not have; choose one of .*image"),
        ({"image_key": "label"}, "data.image_key is 'label', which is no picture; choose one of image"),
        ({"label_key": "class"}, "data.label_key is 'class', which records do not have; choose one of .*label"),
        ({"label_key": ""}, "data.label_key is '', which records do not have"),
        ({"label_key": "box"}, "data.label_key is 'box', which has more than one value"),
        ({"client_key": "owner"}, "data.client_key is 'owner', which records do not have; choose one of .*user"),
        ({"task": "sorting"}, "data.task is 'sorting'"),
        ({"num_clients": 99}, "99 clients of 2 labels need 198 portions"),
    ],
)
def test_bad_options_of_tensorflow_datasets(shapes, options, message):
    refuses(load_tfds, message, **{"data_dir": str(shapes), **options})


def test_records_that_only_tensorflow_reads(shapes):
    info = shapes / "shapes" / "1.0.0" / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    refuses(
        load_tfds, "holds tfrecord files, which only TensorFlow reads; prepare .*array_record", data_dir=str(shapes)
    )


def test_damaged_data_sets_of_tensorflow_datasets(shapes, archive):
    refuses(load_sop, "has no 'class_id' in its records, only ", root=str(shapes / "shapes" / "1.0.0"))
    (shapes / "shapes" / "1.0.0" / "dataset_info.json").write_text("{")
    refuses(load_sop, "1.0.0 is no prepared data set: ", root=str(shapes / "shapes" / "1.0.0"))


def test_a_pipe_is_not_waited_for_and_a_huge_file_not_read(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "huge.jpg").write_bytes(bytes(101))
    monkeypatch.setattr(data_index, "MAX_BYTES", 100)
    files = Files(tmp_path, ["pipe.jpg", "huge.jpg"])
    with pytest.raises(BadImage, match="not a file"):
        files.read(0)
    with pytest.raises(BadImage, match="too large"):
        files.read(1)
