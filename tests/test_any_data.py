"""Whatever is done to a data set's files: it loads, or is refused in one line that names what to mend.

Each example takes a good small copy of a data set and damages it in one to three ways.
FEDSS_TRIES=1000 pytest -s tests/test_any_data.py tries more.
"""

from __future__ import annotations

import io
import logging
import math
import os
import shutil
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import layouts
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_collections import ConfigDict
from test_runs import READERS, shrink
from tries import enough, one_line, tell, tries

from fedss_jax import data, parts
from fedss_jax.config import resolve
from fedss_jax.train import train
from fedss_jax.types import Dataset, UserError

Damage = Callable[[st.DrawFn, Path], None]


def own_array_folder(tmp_path: Path) -> ConfigDict:
    """As own_features, in a folder of .npy files."""
    config = next(make for make in READERS if make.__name__ == "own_features")(tmp_path)
    with np.load(config.data.train) as arrays:
        (tmp_path / "arrays").mkdir()
        for name in arrays.files:
            np.save(tmp_path / "arrays" / f"{name}.npy", arrays[name])
    os.remove(config.data.train)
    config.data.train = str(tmp_path / "arrays")
    return config


MAKERS = {make.__name__: make for make in (*READERS, own_array_folder)}


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())


def a_file(draw: st.DrawFn, root: Path, *suffixes: str) -> Path | None:
    """One of these kinds, or of any; tables and arrays as often as all pictures together."""
    found = [path for path in files(root) if not suffixes or path.suffix in suffixes]
    few = [path for path in found if path.suffix.lower() not in (".jpg", ".jpeg")]
    if not found:
        return None
    return draw(st.sampled_from(few if few and draw(st.booleans()) else found))


def is_prepared(root: Path) -> bool:
    """Whether TensorFlow Datasets' own code reads it."""
    return any(root.rglob("dataset_info.json"))


def cut(draw: st.DrawFn, root: Path) -> None:
    if path := a_file(draw, root):
        content = path.read_bytes()
        path.write_bytes(content[: draw(st.integers(0, len(content)))])


def flip_bytes(draw: st.DrawFn, root: Path) -> None:
    if path := a_file(draw, root):
        content = bytearray(path.read_bytes() or b"\0")
        for _ in range(draw(st.integers(1, 20))):
            content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
        path.write_bytes(content)


def delete(draw: st.DrawFn, root: Path) -> None:
    if path := a_file(draw, root):
        path.unlink()


def delete_folder(draw: st.DrawFn, root: Path) -> None:
    folders = sorted(path for path in root.rglob("*") if path.is_dir() and not path.is_symlink())
    if folders:
        shutil.rmtree(draw(st.sampled_from(folders)))


def rename(draw: st.DrawFn, root: Path) -> None:
    names = ("strange name é.jpg", "x", ".hidden", "a" * 200, "new\nline.jpg", "clients.csv", "images.npy")
    if path := a_file(draw, root):
        path.rename(path.with_name(draw(st.sampled_from(names))))


def add(draw: st.DrawFn, root: Path) -> None:
    """A file or a folder more."""
    folder = draw(st.sampled_from([root, *sorted(path.parent for path in files(root))]))
    name = draw(
        st.sampled_from(["more.jpg", "new\nline.jpg", "Thumbs.db", "more/a.jpg", "new\nfolder/a.jpg", "b\udcff.jpg"])
    )
    content = draw(st.sampled_from([b"", b"no picture", layouts.jpeg(1), layouts.jpeg(2, (1, 1)), bytes(1000)]))
    path = folder / name
    if not path.parent.is_file() and not path.is_dir():
        layouts.write(path, content)


def link(draw: st.DrawFn, root: Path) -> None:
    """To itself, to nowhere, out of the data folder, or a pipe."""
    if path := a_file(draw, root):
        endless = [] if is_prepared(root) else ["/dev/zero", "pipe"]
        path.unlink()
        target = draw(st.sampled_from([path.name, "nowhere", "/etc/hostname", *endless]))
        if target == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to(target)


def broken_picture(draw: st.DrawFn, root: Path) -> None:
    if path := a_file(draw, root, ".jpg", ".JPG", ".JPEG"):
        tiny, gray = io.BytesIO(), layouts.jpeg(3, (1, 1))
        tiny.write(gray[: len(gray) // 2])
        bomb = b"BM" + bytes(16) + (2**20).to_bytes(4, "little") * 2 + b"\1\0\x18\0" + bytes(24)
        path.write_bytes(draw(st.sampled_from([b"", gray, tiny.getvalue(), b"GIF89a", bomb])))


def table_lines(draw: st.DrawFn, root: Path) -> None:
    """Lines that are dropped, repeated, shuffled, cut or without an end; columns that are dropped or exchanged."""
    path = a_file(draw, root, ".csv", ".txt")
    if path is None:
        return
    lines = path.read_bytes().split(b"\n")
    at = draw(st.integers(0, len(lines) - 1))
    separator = b" " if path.suffix == ".txt" else b","
    column = draw(st.integers(0, 3))
    without = [separator.join(part for i, part in enumerate(line.split(separator)) if i != column) for line in lines]
    backwards = [separator.join(reversed(line.split(separator))) for line in lines]
    changed = draw(
        st.sampled_from(
            [
                lines[:at] + lines[at + 1 :],
                lines[: at + 1] + lines[at:],
                lines[:1],
                [lines[0], *reversed(lines[1:])],
                without,
                backwards,
                [*lines[:at], lines[at] + separator + b"more", *lines[at + 1 :]],
                lines[:at] + [b""] * 3 + lines[at:],
            ]
        )
    )
    end = draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    path.write_bytes(draw(st.sampled_from([b"", b"\xef\xbb\xbf", b"\xff\xfe"])) + end.join(changed))


def table_value(draw: st.DrawFn, root: Path) -> None:
    path = a_file(draw, root, ".csv", ".txt")
    if path is None:
        return
    lines = path.read_bytes().split(b"\n")
    at, separator = draw(st.integers(0, len(lines) - 1)), b" " if path.suffix == ".txt" else b","
    fields = lines[at].split(separator)
    fields[draw(st.integers(0, len(fields) - 1))] = draw(
        st.sampled_from(
            [b"", b"-1", b"1.5", b"9" * 17, b"9" * 30, b"nan", b"\xe9", b"\0", b'"', b"../../x.jpg", b"/etc/hostname"]
        )
        | st.binary(max_size=6)
    )
    lines[at] = separator.join(fields)
    path.write_bytes(b"\n".join(lines))


def claimed(array: np.ndarray, shape: tuple[int, ...]) -> bytes:
    """An .npy file whose header claims a shape that its content has not."""
    file = io.BytesIO()
    header = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + array.tobytes()


def array(draw: st.DrawFn, root: Path) -> None:
    """An array of another type, shape or content, or that claims to be huge, or Python objects."""
    path = a_file(draw, root, ".npz", ".npy")
    if path is None:
        return
    try:
        with np.load(path) if path.suffix == ".npz" else io.BytesIO() as stored:
            arrays = {name: stored[name] for name in stored} if path.suffix == ".npz" else {path.stem: np.load(path)}
    except Exception:  # damaged already
        return
    if not arrays:
        return
    name = draw(st.sampled_from(sorted(arrays)))
    good = arrays[name]
    if good.dtype.kind not in "iufUS" or not good.ndim or not good.size:
        return
    numbers = good.astype(float) if good.dtype.kind in "iuf" else np.zeros(good.shape)
    spoilt = numbers.copy()
    spoilt.flat[draw(st.integers(0, good.size - 1))] = draw(st.sampled_from([np.nan, np.inf, 1e300, -1.0]))
    gaps = np.arange(len(good)) // 2 * 1_000_000_007
    huge = draw(st.sampled_from([(2**40,), (2**20, 2**20), (2**62, 4), (-1,), (len(good) + 1,)]))
    changed = draw(
        st.sampled_from(
            [
                good[:0],
                good[:-1],
                good[..., None],
                good.T,
                np.array(0),
                spoilt,
                np.zeros_like(good),
                gaps,
                -gaps,
                gaps.astype(np.uint64) + np.uint64(2**63),
                np.arange(len(good)),
                np.array([f"é{i % 5}" for i in range(len(good))]),
                np.array([b"\xff%d" % (i % 5) for i in range(len(good))]),
                np.array([None] * len(good), object),
                good.astype(complex) if good.dtype.kind in "iuf" else good,
                good.astype(">f2") if good.dtype.kind in "iuf" else good,
                good.astype(bool) if good.dtype.kind in "iuf" else good,
                np.zeros(len(good), "datetime64[s]"),
                np.zeros(len(good), [("a", int)]),
                claimed(good, huge),
                None,
            ]
        )
    )
    if path.suffix == ".npy":
        path.unlink()
        if isinstance(changed, bytes):
            path.write_bytes(changed)
        elif changed is not None:
            np.save(path, changed)
        return
    others = {other: values for other, values in arrays.items() if other != name}
    if changed is not None and not isinstance(changed, bytes):
        others[name] = changed
    np.savez(path, **others)
    if isinstance(changed, bytes):
        with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"{name}.npy", changed)


DAMAGE: tuple[Damage, ...] = (
    cut,
    flip_bytes,
    delete,
    delete_folder,
    rename,
    add,
    link,
    broken_picture,
    table_lines,
    table_value,
    array,
)


def applies(damage: Damage, source: str) -> bool:
    """Whether it can do anything to such a source."""
    arrays = source in ("own_features", "own_images", "own_array_folder")
    tables = source in ("stanford_archive", "landmarks_flat", "landmarks_nested", "own_table")
    pictures = not arrays and source not in ("stanford_prepared", "any_of_tfds")
    needed = {table_lines: tables, table_value: tables, array: arrays, broken_picture: pictures}
    return needed.get(damage, True)


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> dict[str, tuple[Path, ConfigDict]]:
    """A small copy of every data set."""
    made = {}
    for name, make in MAKERS.items():
        folder = tmp_path_factory.mktemp(name)
        made[name] = folder, shrink(make(folder))
    return made


def damaged(drawing: st.DataObject, good: dict[str, tuple[Path, ConfigDict]], folder: Path) -> tuple[str, ConfigDict]:
    """A copy of one of them in a new folder, and its config."""
    source = drawing.draw(st.sampled_from(sorted(good)), "source")
    original, config = good[source]
    copy = folder / "data"
    shutil.copytree(original, copy, symlinks=True)
    chosen = st.sampled_from([damage for damage in DAMAGE if applies(damage, source)])
    for damage in drawing.draw(st.lists(chosen, min_size=1, max_size=3), "damage"):
        damage(drawing.draw, copy)
    text = config.to_json_best_effort().replace(str(original), str(copy))
    moved = config.copy_and_resolve_references()
    for key, value in config.data.items():
        if isinstance(value, str):
            moved.data[key] = value.replace(str(original), str(copy))
    assert str(copy) in text or str(original) not in text
    if "max_bad_share" in moved.data:
        moved.data.max_bad_share = drawing.draw(st.sampled_from([0.01, 0.5, 1.0]), "max_bad_share")
    return source, moved


def load(config: ConfigDict) -> Dataset:
    config = resolve(config)
    return data.find(config.data.name, config.eval.split, parts.source_options(config))()


def attempt(config: ConfigDict, do: Callable[[ConfigDict], Any]) -> Any:
    """What comes of it; None if it is refused, which must be in one line with a remedy."""
    try:
        return do(config)
    except UserError as error:
        refusal = str(error)
    assert one_line(refusal) and len(refusal) < 2000, refusal
    return None


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own for each example, made by the tests below."""
    monkeypatch.setenv("FEDSS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def quiet():
    """Warnings name files whose names are no UTF-8: pytest keeps them, and xdist cannot send them."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_any_data_loads_or_is_refused_in_one_line(good, cache, capsys):
    outcomes = Counter()

    @tries(200)
    @given(st.data())
    def check(drawing):
        shutil.rmtree(cache, ignore_errors=True)
        with tempfile.TemporaryDirectory() as folder:
            _, config = damaged(drawing, good, Path(folder))
            dataset = attempt(config, load)
            outcomes["loaded" if dataset else "refused"] += 1
            if dataset:
                every = np.arange(len(dataset.train))
                assert len(dataset.train.images[every]) == len(every)
        capsys.readouterr()

    check()
    with capsys.disabled():
        tell("data sets", outcomes)
    assert min(outcomes["loaded"], outcomes["refused"]) >= 20


def test_any_data_that_loads_runs(good, cache, one_device, capsys):
    """Two rounds. Only that can tell, but it takes seconds."""
    outcomes = Counter()

    @tries(40, of_asked=0.05)
    @given(st.data())
    def check(drawing):
        shutil.rmtree(cache, ignore_errors=True)
        with tempfile.TemporaryDirectory() as folder:
            _, config = damaged(drawing, good, Path(folder))
            if enough(outcomes, 3):
                return
            summary = attempt(config, lambda config: train(config, f"{folder}/run"))
            outcomes["ran" if summary else "refused"] += 1
            assert summary is None or all(map(math.isfinite, summary["final"].values()))
        capsys.readouterr()

    check()
    with capsys.disabled():
        tell("data sets run", outcomes)
    assert outcomes["ran"]
