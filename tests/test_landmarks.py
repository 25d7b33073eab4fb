"""Landmarks-User-160k: a small copy of its tables and pictures, and whatever can be wrong with them."""

from __future__ import annotations

import layouts
import numpy as np
import pytest
from sources import contents, edit, names, refuses, with_defaults

from fedss_jax.data import landmarks

pytestmark = pytest.mark.usefixtures("cache")
load_landmarks = with_defaults(landmarks.index, name="landmarks_user_160k", split="test", images="", seed=0)


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
