"""Folders and tables of one's own, in every form that they may have."""

from __future__ import annotations

import layouts
import numpy as np
import pytest
from sources import DEAL, contents, edit, names, refuses, with_defaults

from fedss_jax.data import folder

pytestmark = pytest.mark.usefixtures("cache")
load_folder = with_defaults(
    folder.index, **DEAL, csv="", test_csv="", task="classification", test_share=0.2, cache_dir=""
)


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
