"""Files below a folder: what is read of them, and what is not."""

from __future__ import annotations

import os

import layouts
import pytest

from fedss_jax.data import index
from fedss_jax.data.index import BadImage, Files, packed


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


def test_a_pipe_is_not_waited_for_and_a_huge_file_not_read(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "huge.jpg").write_bytes(bytes(101))
    monkeypatch.setattr(index, "MAX_BYTES", 100)
    files = Files(tmp_path, ["pipe.jpg", "huge.jpg"])
    with pytest.raises(BadImage, match="not a file"):
        files.read(0)
    with pytest.raises(BadImage, match="too large"):
        files.read(1)
