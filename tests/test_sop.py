"""Stanford Online Products: small copies of its two layouts, and whatever can be wrong with them."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import layouts
import numpy as np
import pytest
from sources import DEAL, contents, edit, names, refuses, with_defaults

from fedss_jax.data import records, sop
from fedss_jax.data.index import BadImage, Files

pytestmark = pytest.mark.usefixtures("cache")
load_sop = with_defaults(sop.index, **DEAL, download=False, cache_dir="")


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


def test_damaged_data_sets_of_tensorflow_datasets(tmp_path):
    shapes = layouts.shapes_prepared(tmp_path / "tfds")
    refuses(load_sop, "has no 'class_id' in its records, only ", root=str(shapes))
    (shapes / "dataset_info.json").write_text("{")
    refuses(load_sop, "1.0.0 is no prepared data set: ", root=str(shapes))
