"""Class folders are listed once, whatever happens in between."""

from __future__ import annotations

import os
import tracemalloc
from collections import Counter
from pathlib import Path

import layouts
import numpy as np
import pytest

from fedss_jax.data import listing
from fedss_jax.data.listing import list_pictures, listing_notes, sub_folders
from fedss_jax.types import UserError

SIZES = {"n01": 3, "n02": 2, "n03": 4}
ALL = [f"{name}/{name}_{i}.jpg" for name, size in SIZES.items() for i in range(size)]


@pytest.fixture
def listed(monkeypatch) -> Counter:
    """How often each folder was listed, by name."""
    counts: Counter = Counter()
    real = os.scandir

    def counting(path):
        if isinstance(path, Path):  # not the file handles that others list
            counts[path.name] += 1
        return real(path)

    monkeypatch.setattr(listing.os, "scandir", counting)
    return counts


@pytest.fixture
def root(tmp_path) -> Path:
    return layouts.class_folders(tmp_path / "data", SIZES)


def names(root: Path, cache: Path) -> list[str]:
    return [name.decode() for name in list_pictures(root, sub_folders(root), cache).names.tolist()]


def test_folders_are_listed_once(root, tmp_path, listed):
    assert names(root, tmp_path) == ALL == names(root, tmp_path)
    assert {name: listed[name] for name in ("n01", "n02", "n03")} == {"n01": 1, "n02": 1, "n03": 1}


def test_a_killed_listing_goes_on_where_it_stopped(root, tmp_path, listed, monkeypatch):
    """Killed while it writes the second folder's line to the journal."""
    real = listing._list_folder

    def killed(root, folder, journal):
        if folder == "n03":
            raise KeyboardInterrupt
        return real(root, folder, journal)

    monkeypatch.setattr(listing, "_list_folder", killed)
    with pytest.raises(KeyboardInterrupt):
        names(root, tmp_path)
    monkeypatch.setattr(listing, "_list_folder", real)
    (journal,) = tmp_path.glob("listing-*/journal")
    lines = journal.read_bytes().splitlines(keepends=True)
    assert len(lines) == 2
    journal.write_bytes(lines[0] + lines[1][:20])
    assert names(root, tmp_path) == ALL
    assert [listed[name] for name in ("n01", "n02", "n03")] == [1, 2, 1]
    assert journal.read_bytes() == b""  # all is in the finished list
    assert names(root, tmp_path) == ALL
    assert listed["n02"] == 2


def test_a_damaged_line_costs_one_folder(root, tmp_path, listed):
    names(root, tmp_path)
    (home,) = tmp_path.glob("listing-*")
    for file in home.glob("*.np*"):
        file.unlink()
    good = b'{"folder": "n01", "mtime_ns": %d, "names": ["n01_0.jpg"], "ignored": 0, "nested": 0}\n'
    (home / "journal").write_bytes(b"}nonsense{\n[]\n" + good % os.stat(root / "n01").st_mtime_ns)
    assert names(root, tmp_path) == [name for name in ALL if name not in ("n01/n01_1.jpg", "n01/n01_2.jpg")]
    assert [listed[name] for name in ("n01", "n02", "n03")] == [1, 2, 2]


def test_only_what_changed_is_listed_again(root, tmp_path, listed):
    before = list_pictures(root, sub_folders(root), tmp_path).names
    layouts.write(root / "n02" / "long name, much longer than the others.JPG", layouts.jpeg(50))
    os.utime(root / "n02", ns=(1, 1))
    for file in (root / "n03").iterdir():
        file.unlink()
    (root / "n03").rmdir()
    layouts.class_folders(root, {"n00": 2}, ".JPEG")
    after = names(root, tmp_path)
    assert after == [
        "n00/n00_0.JPEG",
        "n00/n00_1.JPEG",
        "n01/n01_0.jpg",
        "n01/n01_1.jpg",
        "n01/n01_2.jpg",
        "n02/long name, much longer than the others.JPG",
        "n02/n02_0.jpg",
        "n02/n02_1.jpg",
    ]
    assert [listed[name] for name in ("n00", "n01", "n02", "n03")] == [1, 1, 2, 1]
    assert before[-1] == b"n03/n03_3.jpg"  # who has the old list open keeps it
    assert len(list(tmp_path.glob("listing-*/names-*.npy"))) == 1


def test_a_lost_or_damaged_list_is_made_again(root, tmp_path, caplog):
    expected = names(root, tmp_path)
    (home,) = tmp_path.glob("listing-*")
    (file,) = home.glob("names-*.npy")
    file.write_bytes(file.read_bytes()[:-5])
    assert names(root, tmp_path) == expected
    (home / "folders.npz").write_bytes(b"nonsense")
    assert names(root, tmp_path) == expected
    assert "is damaged and made again" in caplog.text


def test_what_is_no_picture_is_counted(root, tmp_path):
    layouts.write(root / "n01" / "notes.txt", "hello")
    layouts.write(root / "n01" / ".hidden.jpg", "hello")
    layouts.write(root / ".git" / "x.jpg", "hello")
    layouts.write(root / "empty" / "deeper" / "x.jpg", "hello")
    (root / "void").mkdir()
    layouts.write(root / "n02" / "Ünï.PNG", layouts.jpeg(8))
    folders = sub_folders(root)
    found = list_pictures(root, folders, tmp_path)
    assert folders == ["empty", "n01", "n02", "n03", "void"]
    assert found.pictures.tolist() == [0, 3, 3, 4, 0]
    assert listing_notes(folders, found) == [
        "1 files were ignored, as their names do not end like a picture's",
        "2 class folders without a picture were left out: empty, void",
        "1 of them have folders of their own, which are not searched",
    ]


def test_names_that_are_not_utf8(root, tmp_path):
    odd = os.fsencode(root / "n01") + b"/\xff\xfe.jpg"
    with open(odd, "wb") as file:
        file.write(layouts.jpeg(7))
    for _ in range(2):
        found = list_pictures(root, sub_folders(root), tmp_path).names
        assert b"n01/\xff\xfe.jpg" in found.tolist()


def test_links(root, tmp_path):
    (root / "inside").symlink_to(root / "n01")
    assert list_pictures(root, sub_folders(root), tmp_path).pictures.tolist() == [3, 3, 2, 4]
    (root / "outside").symlink_to(layouts.class_folders(tmp_path / "other", {"x": 1}) / "x")
    with pytest.raises(UserError, match="outside is a link that leads outside the data folder; put"):
        sub_folders(root)


def test_nothing_to_list(tmp_path):
    layouts.write(tmp_path / "data" / "a" / "x.txt", "no picture")
    (tmp_path / "data" / "b" / "c").mkdir(parents=True)
    with pytest.raises(UserError, match="2 class folders in .* hold 1 folders and 1 other files, but no pictures"):
        names(tmp_path / "data", tmp_path)


def test_a_cache_that_cannot_be_written_is_told(root, tmp_path):
    layouts.write(tmp_path / "file", "")
    with pytest.raises(UserError, match="or set data.root and data.cache_dir to other folders") as error:
        names(root, tmp_path / "file")
    assert "\n" not in str(error.value)


def test_memory_does_not_grow_with_the_number_of_names(tmp_path, monkeypatch):
    """200 folders of 1,000 names: 2.5 MB of names, 20 MB as strings."""

    class Entry:
        def __init__(self, name):
            self.name = name

        def is_dir(self):
            return False

    class Entries(list):
        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

    folders = [f"n{i:03}" for i in range(200)]
    for folder in folders:
        (tmp_path / folder).mkdir()
    real, thousand = os.scandir, Entries(Entry(f"{i:07}.jpg") for i in range(1000))
    monkeypatch.setattr(listing.os, "scandir", lambda path: thousand if isinstance(path, Path) else real(path))
    tracemalloc.start()
    try:
        found = list_pictures(tmp_path, folders, tmp_path / "cache")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found.names) == 200_000 and isinstance(found.names, np.memmap)
    assert peak < 2_500_000
