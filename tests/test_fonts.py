"""The glyph image set: what must hold for the rendered data, the cache, and bad input."""

from __future__ import annotations

import shutil
import struct
from collections import defaultdict
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from fontTools import unicodedata
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from fontTools.ttLib import TTCollection, TTFont
from PIL import ImageFont

from fedss_jax.data import fonts

TTF = Path(matplotlib.get_data_path(), "fonts", "ttf")


@pytest.fixture(scope="session")
def glyphs() -> fonts.Glyphs:
    """Everything, from the default cache (rendered there if need be)."""
    return fonts.load_glyphs()


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Matplotlib's font folder, cut down to two small fonts, so that rendering is quick."""
    folder = tmp_path / "mpl" / "fonts" / "ttf"
    folder.mkdir(parents=True)
    for name in ("cmtt10.ttf", "cmss10.ttf"):
        shutil.copy(TTF / name, folder)
    monkeypatch.setattr(matplotlib, "get_data_path", lambda: str(tmp_path / "mpl"))
    return folder


def load_small(tmp_path: Path, font_dirs: tuple[str, ...] = (), **options: int) -> fonts.Glyphs:
    options = {"min_images": 1, **options}
    return fonts.load_glyphs(font_dirs, cache_dir=tmp_path / "cache", **options)


def same(a: fonts.Glyphs, b: fonts.Glyphs) -> bool:
    arrays = all(np.array_equal(x, y) and x.dtype == y.dtype for x, y in zip(a[:4], b[:4]))
    return arrays and a[4:] == b[4:]


def classes_of(glyphs: fonts.Glyphs, text: str) -> set[int]:
    """The classes that the images drawn from these characters have."""
    return set(glyphs.labels[np.isin(glyphs.code_points, [ord(char) for char in text])].tolist())


def draw(file: str, char: str, size: int = 32) -> np.ndarray:
    font = ImageFont.truetype(TTF / file, round(fonts.EM * size))
    picture = fonts.draw(font, char, size)
    assert picture is not None
    return np.frombuffer(picture, np.uint8).reshape(size, size)


def build_font(path: Path, cmap: dict[int, str]) -> None:
    """A font with a large square as .notdef, a small one, a dash, and a glyph without ink."""
    names, boxes = [".notdef", "square", "dash", "blank"], [(0, 800), (100, 500), (300, 400), ()]
    glyphs = {}
    for name, box in zip(names, boxes):
        pen = TTGlyphPen(None)
        if box:
            low, high = box
            corners = [(100, low), (100, high), (600, high), (600, low)]
            pen.moveTo(corners[0])
            for corner in corners[1:]:
                pen.lineTo(corner)
            pen.closePath()
        glyphs[name] = pen.glyph()
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap(cmap)
    builder.setupGlyf(glyphs)
    builder.setupHorizontalMetrics(dict.fromkeys(names, (700, 100)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupPost()
    builder.save(path)


# --- the whole set ------------------------------------------------------------------------------


def test_shapes_and_counts(glyphs: fonts.Glyphs) -> None:
    n = len(glyphs.images)
    assert glyphs.images.shape == (n, 32, 32) and glyphs.images.dtype == np.uint8
    for array in (glyphs.labels, glyphs.code_points, glyphs.faces):
        assert array.shape == (n,) and array.dtype == np.int32
    assert 30_000 < n < 45_000
    assert 3_500 < len(glyphs.class_names) < 4_500
    assert set(glyphs.faces) == set(range(len(glyphs.face_names)))


def test_every_class_has_enough_images(glyphs: fonts.Glyphs) -> None:
    counts = np.bincount(glyphs.labels, minlength=len(glyphs.class_names))
    assert len(counts) == len(glyphs.class_names)
    assert counts.min() >= 4
    assert counts.max() < 60  # no chain of merges swallowed half an alphabet


def test_no_bitmap_is_blank_or_occurs_twice(glyphs: fonts.Glyphs) -> None:
    assert glyphs.images.any(axis=(1, 2)).all()
    seen = {image.tobytes() for image in glyphs.images}
    assert len(seen) == len(glyphs.images)  # hence none in two classes, none twice in one


def test_classes_are_ordered_and_named_by_their_smallest_code_point(glyphs: fonts.Glyphs) -> None:
    firsts = np.full(len(glyphs.class_names), 0x110000)
    np.minimum.at(firsts, glyphs.labels, glyphs.code_points)
    assert (np.diff(firsts) > 0).all()
    for first, name in zip(firsts.tolist(), glyphs.class_names):
        assert name == f"U+{first:04X} {unicodedata.name(chr(first))}"
    rows = list(zip(glyphs.labels, glyphs.faces, glyphs.code_points))
    assert rows == sorted(rows)


def test_a_code_point_has_one_class(glyphs: fonts.Glyphs) -> None:
    classes = defaultdict(set)
    for code_point, label in zip(glyphs.code_points.tolist(), glyphs.labels.tolist()):
        classes[code_point].add(label)
    assert all(len(labels) == 1 for labels in classes.values())


def test_code_points_have_a_picture_and_are_in_the_font(glyphs: fonts.Glyphs) -> None:
    for code_point in np.unique(glyphs.code_points):
        category = unicodedata.category(chr(code_point))
        assert category not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp")
    for index, name in enumerate(glyphs.face_names):
        with TTFont(TTF / f"{name}.ttf", lazy=True) as font:
            cmap = font.getBestCmap()
        assert set(glyphs.code_points[glyphs.faces == index].tolist()) <= set(cmap)


@pytest.mark.parametrize("alike", ["AΑА", "KΚК", "oοо", "ΓГ", "µμ", "ΩΩ"])
def test_look_alikes_are_one_class(glyphs: fonts.Glyphs, alike: str) -> None:
    assert len(classes_of(glyphs, alike)) == 1


@pytest.mark.parametrize("pair", ["oO", ",'", "cC", "Il", "uи", "mт", "nп", "-_", "O0", "IĬ", "πп"])
def test_different_looks_are_two_classes(glyphs: fonts.Glyphs, pair: str) -> None:
    assert len(classes_of(glyphs, pair)) == 2


def test_wrongly_encoded_characters_are_left_out(glyphs: fonts.Glyphs) -> None:
    drawn = defaultdict(set)
    for face, code_point in zip(glyphs.faces, glyphs.code_points):
        drawn[glyphs.face_names[face]].add(chr(code_point))
    assert "A" in drawn["cmr10"] and not drawn["cmr10"] & set("<>{|}\"'\\`£")
    assert "a" in drawn["cmmi10"] and not drawn["cmmi10"] & set("0123456789=@[")
    assert "$" in drawn["cmtt10"] and "$" not in drawn["cmti10"]
    assert "(" in drawn["STIXSizOneSymReg"] and "\u0302" not in drawn["STIXSizOneSymReg"]
    assert not any(name.startswith(("cmsy", "cmex", "LastResort")) for name in drawn)


# --- drawing ------------------------------------------------------------------------------------


def test_baseline_and_centre_are_fixed() -> None:
    bottoms = {int(np.flatnonzero(draw("DejaVuSans.ttf", c).any(1))[-1]) for c in "AxHil"}
    assert bottoms == {24}
    for char in "AxHil,'":
        columns = np.flatnonzero(draw("DejaVuSans.ttf", char).any(0))
        assert abs(columns[0] - (31 - columns[-1])) <= 1


def test_large_glyphs_are_scaled_not_cut() -> None:
    tall = draw("STIXSizFourSymReg.ttf", "(")  # 80 rows at the common em size
    rows = np.flatnonzero(tall.any(1))
    assert 27 <= len(rows) <= 32
    centre = [np.average(np.arange(32), weights=tall[row]) for row in rows[[0, len(rows) // 2, -1]]]
    assert centre[0] > centre[1] + 1 and centre[2] > centre[1] + 1  # both tips are there


@pytest.mark.parametrize("char", ["Ẳ", "\u06d0"])
def test_high_and_low_glyphs_are_moved_not_cut(char: str) -> None:
    font = ImageFont.truetype(TTF / "DejaVuSans.ttf", 26)
    _, top, _, bottom = font.getbbox(char, anchor="ls")
    assert 25 + top < 0 or 25 + bottom > 32  # it would stick out
    rows = np.flatnonzero(draw("DejaVuSans.ttf", char).any(1))
    assert rows[-1] - rows[0] + 1 >= bottom - top - 1


def test_no_blank_glyph_no_notdef_no_placeholder(tmp_path: Path) -> None:
    cmap = {ord("A"): "dash", ord("B"): "blank", ord("D"): "dash", 0x10300: "square"}
    cmap |= {0x4E00 + i: "square" for i in range(fonts.MAX_ALIKE + 1)}
    path = tmp_path / "odd.ttf"
    build_font(path, cmap)
    # Map U+10300 to .notdef (glyph 0), as some fonts do and fontTools cannot.
    entry = struct.pack(">II", 0x10300, 0x10300)
    data = path.read_bytes()
    assert data.count(entry + struct.pack(">I", 1)) == 1
    path.write_bytes(data.replace(entry + struct.pack(">I", 1), entry + struct.pack(">I", 0)))
    glyphs = fonts.render([path], 32, 1)
    assert glyphs.code_points.tolist() == [ord("A")]  # D has the same picture, the rest nothing


# --- merging ------------------------------------------------------------------------------------


def test_a_third_of_the_faces_decides() -> None:
    alike, apart = {1: b"x", 2: b"x"}, {1: b"p", 2: b"q"}
    assert fonts.same_look([alike, apart, apart]) == {1: 1, 2: 1}
    assert fonts.same_look([alike, apart, apart, apart]) == {1: 1, 2: 2}
    assert fonts.same_look([alike, {1: b"p"}, {2: b"q"}, {1: b"r"}]) == {1: 1, 2: 1}


def test_merges_are_transitive_whatever_their_order() -> None:
    faces = [{3: b"x", 4: b"x"}, {1: b"y", 2: b"y"}, {2: b"z", 4: b"z"}, {5: b"x"}]
    assert fonts.same_look(faces) == {1: 1, 2: 1, 3: 1, 4: 1, 5: 5}
    assert fonts.same_look(faces[::-1]) == fonts.same_look(faces)


# --- finding fonts ------------------------------------------------------------------------------


def test_same_files_same_arrays_whatever_the_listing(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = tmp_path / "extra"
    for part, name in (("b", "cmr10.ttf"), ("a", "cmb10.ttf")):
        (extra / part).mkdir(parents=True)
        shutil.copy(TTF / name, extra / part / name.upper())
    first = fonts.render(list(fonts.find_fonts([str(extra)]).values()), 32, 1)
    listing = Path.rglob
    monkeypatch.setattr(Path, "rglob", lambda *args: sorted(listing(*args), reverse=True))
    second = fonts.render(list(fonts.find_fonts([str(extra)]).values()), 32, 1)
    assert first.face_names == ("cmss10", "cmtt10", "CMB10", "CMR10")
    assert same(first, second)


def test_a_file_is_used_once(small: Path) -> None:
    assert fonts.find_fonts([str(small), str(small)]) == fonts.find_fonts()


def test_bad_folders(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^font folder .*nowhere does not exist.*leave it out$"):
        fonts.load_glyphs([str(tmp_path / "nowhere")])
    (tmp_path / "readme.txt").write_text("no font")
    with pytest.raises(ValueError, match=r"^font folder .* has no .ttf.*leave it out$") as error:
        fonts.load_glyphs([str(tmp_path)])
    assert str(tmp_path) in str(error.value)


def test_unreadable_fonts_are_skipped(small: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "junk.ttf").write_bytes(b"this is no font")
    (bad / "cut.otf").write_bytes((TTF / "cmr10.ttf").read_bytes()[:9000])
    (bad / "none.ttc").write_bytes(b"")
    (bad / "folder.ttf").mkdir()
    assert same(load_small(tmp_path, (str(bad),)), load_small(tmp_path))
    for name in ("junk.ttf", "cut.otf", "none.ttc", "folder.ttf"):
        messages = [m for m in caplog.messages if name in m]
        assert len(messages) == 1 and "\n" not in messages[0]


def test_collections_give_all_their_faces(small: Path, tmp_path: Path) -> None:
    collection = TTCollection()
    collection.fonts = [TTFont(TTF / name) for name in ("cmr10.ttf", "cmb10.ttf")]
    extra = tmp_path / "extra"
    extra.mkdir()
    collection.save(extra / "pair.ttc")
    glyphs = load_small(tmp_path, (str(extra),))
    assert glyphs.face_names == ("cmss10", "cmtt10", "pair#0", "pair#1")
    for face, file in ((2, "cmr10.ttf"), (3, "cmb10.ttf")):
        (image,) = glyphs.images[(glyphs.faces == face) & (glyphs.code_points == ord("A"))]
        assert np.array_equal(image, draw(file, "A"))


# --- cache --------------------------------------------------------------------------------------


def test_cache_hit_draws_nothing(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = load_small(tmp_path)
    message = f"rendering glyphs of 2 font faces (once; cached in {tmp_path / 'cache'})\n"
    assert capsys.readouterr().err == message
    monkeypatch.setattr(fonts, "render", None)
    assert same(load_small(tmp_path), first)
    assert capsys.readouterr().err == ""
    assert len(list((tmp_path / "cache").iterdir())) == 1  # and no temporary file is left


def test_cache_name_follows_fonts_and_parameters(small: Path, tmp_path: Path) -> None:
    load_small(tmp_path)
    assert load_small(tmp_path, size=16).images.shape[1:] == (16, 16)
    assert len(load_small(tmp_path, min_images=2).class_names) < 93
    with (small / "cmtt10.ttf").open("ab") as file:
        file.write(b"\0")
    load_small(tmp_path)
    assert len(list((tmp_path / "cache").iterdir())) == 4


@pytest.mark.parametrize("damage", ["empty", "cut", "junk", "flipped"])
def test_damaged_cache_is_rendered_again(
    small: Path, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = load_small(tmp_path)
    (cache,) = (tmp_path / "cache").iterdir()
    good = cache.read_bytes()
    middle = len(good) // 4
    flipped = good[:middle] + bytes(255 - b for b in good[middle : middle + 50])
    flipped += good[middle + 50 :]
    bad = {"empty": b"", "cut": good[: len(good) // 2], "junk": b"junk" * 99, "flipped": flipped}
    cache.write_bytes(bad[damage])
    assert same(load_small(tmp_path), first)
    assert "damaged" in caplog.text
    caplog.clear()
    assert same(load_small(tmp_path), first)
    assert not caplog.messages  # it was mended


def test_unwritable_cache_is_no_error(small: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    glyphs = fonts.load_glyphs(min_images=1, cache_dir=tmp_path / "file" / "cache")
    assert len(glyphs.images) > 100
    (message,) = caplog.messages
    assert "cannot write the glyph cache" in message


def test_cache_folder_comes_from_the_environment(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDSS_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    fonts.load_glyphs()
    assert list((tmp_path / "xdg" / "fedss_jax").glob("glyphs-*.npz"))
    monkeypatch.setenv("FEDSS_CACHE", str(tmp_path / "own"))
    fonts.load_glyphs()
    assert list((tmp_path / "own").glob("glyphs-*.npz"))


def test_bad_parameters() -> None:
    with pytest.raises(ValueError, match="size"):
        fonts.load_glyphs(size=4)
    with pytest.raises(ValueError, match="min_images"):
        fonts.load_glyphs(min_images=0)


def test_block_and_script() -> None:
    assert (fonts.block(ord("A")), fonts.script(ord("A"))) == ("Basic Latin", "Latin")
    assert (fonts.block(0x10300), fonts.script(0x10300)) == ("Old Italic", "Old Italic")
    assert fonts.script(ord("+")) == "Common"
