"""Glyphs: every character of the fonts that matplotlib ships, as a labelled image set.

A class is a character, or several that look the same (Latin A, Greek Alpha, Cyrillic A); an image
of it is its drawing in one font face. Nothing is downloaded: the fonts come with matplotlib, and
folders with font files may add more. All is drawn once and then read from a cache.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import logging
import os
import string
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fontTools import unicodedata
from fontTools.ttLib import TTCollection, TTFont
from PIL import Image, ImageDraw, ImageFont, features
from tqdm import tqdm

from fedss_jax.data.cache import cache_folder

log = logging.getLogger(__name__)

FORMAT = 1  # raise it whenever a change of this module changes the arrays

# Chosen by looking at 24/32 to 32/32 of the picture's height: at 26/32 a capital has 19 of 32 rows,
# 97 % of the glyphs stay on the common baseline and 99 % keep their size.
EM, BASELINE = 26 / 32, 25 / 32

# Left out: controls, format characters, surrogates, private use, unassigned and spaces, which have
# no picture or one that every font chooses for itself; and Mathematical Alphanumeric Symbols: their
# bold A is any bold face's A. (ℂ, ℝ, ℓ of an older block look different from C, R, l and stay.)
NO_PICTURE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"}
MATHEMATICAL_LETTERS = range(0x1D400, 0x1D800)

# Faces (by the start of their name) that are right for these characters only. Computer Modern (cm*)
# keeps TeX's encodings: in cmr10 '<' is an inverted '!', '{' a dash, and quotes are curly; in cmti10
# '$' is a pound sign; cmmi10 has old-style digits, whose 0 looks like o; cmsy10 has script capitals,
# cmex10 pieces of brackets. STIXSiz* hold large variants: brackets and operators are fine, accents
# are flat lines, roots a bare stroke. (STIXNonUni* are private use only.) The Last Resort font
# draws one placeholder for a whole Unicode block.
_ROMAN = string.ascii_letters + string.digits + "!#%&()*+,-./:;=?@[]"
ALLOWED = {
    **dict.fromkeys(("cmr10", "cmb10", "cmss10"), _ROMAN + "$"),
    "cmti10": _ROMAN,
    "cmtt10": _ROMAN + '"$<>\\^_{|}~',
    "cmmi10": string.ascii_letters + "<>",
    "STIXSiz": "()/[\\]{}⅀∏∐∑⋀⋁⋂⋃⌈⌉⌊⌋❲❳⟦⟧⟨⟩⟪⟫⦃⦄⦅⦆⨀⨁⨂⨃⨄⨅⨆⨇⨈⨉⨊",
    **dict.fromkeys(("cmsy10", "cmex10", "LastResort"), ""),
}

# A picture that a face draws for more code points is a placeholder. (Real look-alikes: at most 7, I Ι І Ӏ Ⅰ ⵏ ꓲ.)
MAX_ALIKE = 20


class Glyphs(NamedTuple):
    """A labelled image set, sorted by class, then face, then code point."""

    images: np.ndarray  # [N, size, size] uint8, 0 is the background
    labels: np.ndarray  # [N] int32, classes 0..n-1, ordered by their smallest code point
    code_points: np.ndarray  # [N] int32, what the image was drawn from
    faces: np.ndarray  # [N] int32, index into face_names
    face_names: tuple[str, ...]  # such as "DejaVuSans-Bold", "Menlo#1"
    class_names: tuple[str, ...]  # one a class, such as "U+0041 LATIN CAPITAL LETTER A"


class Face(NamedTuple):
    """One face of a font file."""

    name: str
    path: Path
    number: int  # a .ttc file holds several
    code_points: tuple[int, ...]  # ascending


Pictures = Mapping[int, bytes]  # code point -> [size, size] uint8 as bytes, ascending


def load_glyphs(
    font_dirs: Sequence[str] = (),
    *,
    size: int = 32,
    min_images: int = 4,
    cache_dir: str | os.PathLike[str] = "",
) -> Glyphs:
    """The glyphs of matplotlib's fonts and of all fonts below `font_dirs`.

    Classes with fewer than `min_images` images are left out. The result is kept in the folder that `cache_folder`
    chooses, under a name that changes with the fonts, the parameters and the libraries that draw.
    """
    if size < 8 or min_images < 1:
        raise ValueError(f"need size >= 8 and min_images >= 1, not {size} and {min_images}")
    fonts = find_fonts(font_dirs)
    libraries = (*map(features.version, ("pil", "freetype2")), unicodedata.unidata_version)
    parts = (FORMAT, size, min_images, libraries, [(digest, path.name) for digest, path in fonts.items()])
    key = hashlib.sha256(repr(parts).encode()).hexdigest()
    cache = cache_folder(os.fspath(cache_dir)) / f"glyphs-{key[:16]}.npz"
    glyphs = _read(cache)
    if glyphs is None:
        glyphs = render(list(fonts.values()), size, min_images, f"once; cached in {cache.parent}")
        _write(cache, glyphs)
    return glyphs


def find_fonts(font_dirs: Sequence[str] = ()) -> dict[str, Path]:
    """SHA-256 -> font file: matplotlib's, then those below each folder, sorted, no file twice."""
    import matplotlib  # here, as only its folder is needed

    dirs = [font_dirs] if isinstance(font_dirs, str) else font_dirs
    fonts: dict[str, Path] = {}
    for folder in (Path(matplotlib.get_data_path(), "fonts", "ttf"), *map(Path, dirs)):
        if not folder.is_dir():
            raise ValueError(f"font folder {folder} does not exist: correct it or leave it out")
        files = [p for p in folder.rglob("*") if p.suffix.lower() in (".ttf", ".otf", ".ttc")]
        if not files:
            raise ValueError(f"font folder {folder} has no .ttf, .otf or .ttc: add or leave it out")
        for path in sorted(files, key=lambda p: p.relative_to(folder).as_posix()):
            try:
                fonts.setdefault(hashlib.sha256(path.read_bytes()).hexdigest(), path)
            except OSError as error:
                log.warning("skipped font %s: %s", path, error)
    return fonts


def render(paths: Sequence[Path], size: int, min_images: int, note: str = "") -> Glyphs:
    """Draw, merge and label the glyphs of these font files."""
    faces = [face for path in paths for face in _open(path)]
    if not sys.stderr.isatty():
        print(f"rendering glyphs of {len(faces)} font faces ({note})", file=sys.stderr, flush=True)
    bar = tqdm(faces, "rendering glyphs", unit="face", disable=None)  # None: off if no terminal
    drawn = {face: pictures for face in bar if (pictures := _draw_face(face, size))}
    return _label(list(drawn.values()), [face.name for face in drawn], size, min_images)


def _open(path: Path) -> list[Face]:
    """The faces of a font file, with those of their characters that are to be drawn."""
    allowed = next((ALLOWED[start] for start in ALLOWED if path.stem.startswith(start)), None)
    if allowed == "":
        return []
    try:
        faces, many = [], path.suffix.lower() == ".ttc"
        file = io.BytesIO(path.read_bytes())  # lazy fonts would keep the file itself open
        fonts = TTCollection(file, lazy=True).fonts if many else [TTFont(file, lazy=True)]
        for number, font in enumerate(fonts):
            cmap = font.getBestCmap()  # without what is mapped to .notdef
            if cmap is None:
                raise ValueError("it has no Unicode character map")
            points = tuple(point for point in sorted(cmap) if _wanted(chr(point), allowed))
            faces.append(Face(f"{path.stem}#{number}" if many else path.stem, path, number, points))
        return [face for face in faces if face.code_points]
    except Exception as error:  # fontTools raises nearly anything on a damaged file
        log.warning("skipped font %s, which cannot be read: %s", path, error)
        return []


def _wanted(char: str, allowed: str | None) -> bool:
    if ord(char) in MATHEMATICAL_LETTERS or unicodedata.category(char) in NO_PICTURE:
        return False
    return allowed is None or char in allowed


def _draw_face(face: Face, size: int) -> Pictures:
    """The pictures of a face: nothing blank, no placeholder."""
    basic = ImageFont.Layout.BASIC  # the bare glyph, no shaping
    try:
        font = ImageFont.truetype(face.path, round(EM * size), face.number, layout_engine=basic)
        pictures = {point: draw(font, chr(point), size) for point in face.code_points}
    except (OSError, ValueError) as error:
        log.warning("skipped font %s, which cannot be drawn: %s", face.path, error)
        return {}
    times = Counter(pictures.values())
    return {c: p for c, p in pictures.items() if p is not None and times[p] <= MAX_ALIKE}


def draw(font: ImageFont.FreeTypeFont, char: str, size: int) -> bytes | None:
    """The picture of `char`, [size, size] uint8 as bytes, or None if there is nothing to see.

    Em size and baseline are fixed, so that o and O differ, and comma and apostrophe. What does not fit is drawn with a
    smaller em or moved, never cut.
    """
    ink, top = _ink(font, char)
    while max(ink.size) > size:
        em = min(int(font.size) - 1, int(font.size * size / max(ink.size)))
        if em < 1:
            return None
        font = font.font_variant(size=em)
        ink, top = _ink(font, char)
    picture = Image.new("L", (size, size))
    y = min(max(round(BASELINE * size) + top, 0), size - ink.height)
    picture.paste(ink, ((size - ink.width) // 2, y))
    return picture.tobytes() if picture.getbbox() else None


def _ink(font: ImageFont.FreeTypeFont, char: str) -> tuple[Image.Image, int]:
    """`char`, cut out closely, and the row of its upper edge, counted from the baseline."""
    left, top, right, bottom = (int(edge) for edge in font.getbbox(char, anchor="ls"))
    canvas = Image.new("L", (right - left + 2, bottom - top + 2))  # with a margin of one pixel
    ImageDraw.Draw(canvas).text((1 - left, 1 - top), char, fill=255, font=font, anchor="ls")
    box = canvas.getbbox() or (0, 0, 1, 1)
    return canvas.crop(box), top - 1 + box[1]


def _label(drawn: Sequence[Pictures], names: Sequence[str], size: int, min_images: int) -> Glyphs:
    """Glyphs from the pictures and the names of all faces."""
    class_of = same_look(drawn)
    claims: dict[bytes, set[int]] = defaultdict(set)
    for pictures in drawn:
        for point, picture in pictures.items():
            claims[picture].add(class_of[point])

    # A picture that two classes claim (in italics, Cyrillic т is drawn like m) has no right label: it is dropped.
    # Any other is kept once, where it occurs first.
    classes: dict[int, dict[bytes, tuple[int, int]]] = defaultdict(dict)
    for face, pictures in enumerate(drawn):
        for point, picture in pictures.items():
            if len(claims[picture]) == 1:
                classes[class_of[point]].setdefault(picture, (face, point))

    kept = [members for members in classes.values() if len(members) >= min_images]
    firsts = [min(point for _, point in members.values()) for members in kept]
    order = np.argsort(firsts)
    rows = [(n, *row) for n, k in enumerate(order) for row in kept[k].values()]
    labels, faces, points = np.array(rows, np.int32).reshape(-1, 3).T.copy()
    pixels = bytearray().join(picture for k in order for picture in kept[k])
    images = np.frombuffer(pixels, np.uint8).reshape(-1, size, size)
    titles = tuple(f"U+{firsts[k]:04X} {unicodedata.name(chr(firsts[k]), '')}" for k in order)
    return Glyphs(images, labels, points, faces, tuple(names), titles)


def same_look(drawn: Sequence[Pictures]) -> dict[int, int]:
    """Code point -> the smallest code point of its class.

    Two code points are joined if they have the same picture in at least a third of the faces that
    have both. Once would be too little: italic faces draw Cyrillic и т п like u m n, and one face
    lacks the breve of Ῐ. A majority would be too much: Latin K and Cyrillic К, Greek Γ and
    Cyrillic Г, the same to a reader, differ by a few pixels in half of the faces or more.
    """
    shared: Counter[tuple[int, int]] = Counter()
    for pictures in drawn:
        alike: dict[bytes, list[int]] = defaultdict(list)
        for point, picture in pictures.items():
            alike[picture].append(point)
        for group in alike.values():
            shared.update(itertools.combinations(group, 2))
    parent = {point: point for pictures in drawn for point in pictures}  # union-find

    def find(point: int) -> int:
        while parent[point] != point:
            parent[point] = point = parent[parent[point]]
        return point

    for (a, b), times in shared.items():
        if 3 * times >= sum(a in pictures and b in pictures for pictures in drawn):
            low, high = sorted((find(a), find(b)))
            parent[high] = low
    return {point: find(point) for point in parent}


def _read(cache: Path) -> Glyphs | None:
    if not os.path.isfile(cache):
        return None
    try:
        with np.load(io.BytesIO(cache.read_bytes()), allow_pickle=False) as stored:
            values = [stored[field] for field in Glyphs._fields]
        return Glyphs._make([*values[:4], *(tuple(names.tolist()) for names in values[4:])])
    except Exception as error:  # whatever is wrong with it, the remedy is the same
        log.warning("cache file %s is damaged, rendering again: %s", cache, error)
        return None


def _write(cache: Path, glyphs: Glyphs) -> None:
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache.parent) as folder:
            part = Path(folder, cache.name)
            np.savez_compressed(part, **glyphs._asdict())
            os.replace(part, cache)  # at once: a reader sees the whole file or none
    except OSError as error:
        log.warning("cannot write the glyph cache, going on without it: %s", error)


def block(code_point: int) -> str:
    """The Unicode block in plain words, such as "Basic Latin"."""
    return unicodedata.block(chr(code_point))


def script(code_point: int) -> str:
    """The script in plain words, such as "Old Italic"; signs of no script are "Common"."""
    return unicodedata.script_name(unicodedata.script(chr(code_point)))
