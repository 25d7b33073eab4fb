"""Pictures of every kind become RGB squares, and whatever is wrong with one is a BadImage."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from fedss_jax.data.decode import MAX_PIXELS, decode
from fedss_jax.data.index import BadImage

RED, WHITE = (200, 30, 40), (255, 255, 255)


def encode(image: Image.Image, form: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def scene(width: int = 48, height: int = 32) -> Image.Image:
    """Smooth, and different in every corner."""
    corners = np.array([[[250, 10, 10], [10, 250, 10]], [[10, 10, 250], [240, 240, 240]]], np.uint8)
    return Image.fromarray(corners).resize((width, height), Image.Resampling.BILINEAR)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *chunks: bytes) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(1000)))  # too few, but that shows only when they are decoded
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + pixels


SAMPLES = {
    "JPEG": encode(scene(), "JPEG", quality=95),
    "PNG": encode(scene(), "PNG"),
    "WEBP": encode(scene(), "WEBP", lossless=True),
    "BMP": encode(scene(), "BMP"),
    "GIF": encode(scene(), "GIF"),
    "TIFF": encode(scene(), "TIFF", compression="tiff_lzw"),
    "MPO": encode(scene(), "MPO", save_all=True, append_images=[Image.new("RGB", (48, 32))], quality=95),
}


@pytest.mark.parametrize("form", SAMPLES)
def test_every_format_is_the_whole_picture_resized(form):
    decoded = decode(SAMPLES[form], 16)
    assert decoded.shape == (16, 16, 3) and decoded.dtype == np.uint8
    expected = np.asarray(scene().resize((16, 16), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(decoded - expected).max() <= (20 if form == "GIF" else 6)  # GIF has 256 colours


def test_large_jpeg_is_decoded_at_reduced_size_to_the_same_picture():
    data = encode(scene(1203, 801), "JPEG", quality=95)
    expected = np.asarray(scene(1203, 801).resize((32, 32), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(decode(data, 32) - expected).max() <= 4


def test_downsizing_averages():
    checks = Image.fromarray((np.indices((64, 64)).sum(axis=0) % 2 * 255).astype(np.uint8))
    assert np.abs(decode(encode(checks, "PNG"), 8).astype(int) - 128).max() <= 4


def flat(mode: str, colour) -> Image.Image:
    return Image.new(mode, (20, 10), colour)


def palette(**options) -> bytes:
    image = flat("P", 1)
    image.putpalette([0, 0, 0, *RED])
    return encode(image, "PNG", **options)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (encode(flat("L", 90), "PNG"), (90, 90, 90)),
        (encode(flat("L", 90), "JPEG"), (90, 90, 90)),
        (encode(flat("1", 1), "PNG"), WHITE),
        (encode(flat("1", 0), "TIFF"), (0, 0, 0)),
        (encode(flat("I;16", 40000), "PNG"), (156, 156, 156)),
        (encode(flat("I;16", 40000), "TIFF"), (156, 156, 156)),
        (encode(Image.fromarray(np.full((10, 20), 40000, ">u2")), "TIFF"), (156, 156, 156)),
        (encode(flat("CMYK", (0, 255, 255, 0)), "JPEG", quality=95), (255, 0, 0)),
        (encode(flat("CMYK", (0, 255, 255, 0)), "TIFF"), (255, 0, 0)),
        (encode(flat("RGBA", (*RED, 255)), "PNG"), RED),
        (encode(flat("RGBA", (*RED, 0)), "PNG"), WHITE),
        (encode(flat("RGBA", (0, 0, 0, 128)), "WEBP", lossless=True), (127, 127, 127)),
        (encode(flat("LA", (0, 128)), "PNG"), (127, 127, 127)),
        (encode(flat("RGB", RED), "PNG", transparency=RED), WHITE),
        (palette(), RED),
        (palette(transparency=1), WHITE),
        (palette(transparency=bytes([255, 0])), WHITE),
        (palette(transparency=0), RED),
        (encode(flat("P", 0), "GIF", transparency=0), WHITE),
    ],
)
def test_every_mode_becomes_rgb(data, expected):
    assert np.abs(decode(data, 4).astype(int) - expected).max() <= 3


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(form, orientation):
    # What each orientation does to the picture, by the standard: how to get from stored to upright.
    upright = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: np.rot90(a, -1),
        7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
        8: lambda a: np.rot90(a),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 95} if form == "JPEG" else {"lossless": True} if form == "WEBP" else {}
    decoded = decode(encode(scene(), form, exif=exif, **options), 16).astype(int)
    plain = np.asarray(scene().resize((16, 16), Image.Resampling.BILINEAR))
    assert np.abs(decoded - upright(plain)).max() <= 6


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")  # as decode.py does, but pytest's own filters stand before that
def test_damaged_exif_does_no_harm():
    data = encode(scene(), "JPEG", exif=b"Exif\x00\x00II*\x00\x08\x00\x00\x00\xff\xff" + b"\xff" * 40)
    assert decode(data, 16).shape == (16, 16, 3)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty file"),
        (b"<html>not found</html>", "not a picture"),
        (encode(scene(), "PPM"), "not a picture"),  # a format that is not on the list
        (SAMPLES["JPEG"][:20], "not a picture"),
        (SAMPLES["JPEG"][:-200], "damaged \\(image file is truncated"),
        (SAMPLES["PNG"][:-40], "damaged"),
        (png(100_000, 100_000), "too large"),
        (png(10_000, 9_000), f"too large.*{MAX_PIXELS:,}"),
        (png(0, 10), "not a picture|damaged"),
        (encode(Image.new("F", (4, 4)), "TIFF"), "no known range of brightness \\(pixels are of mode F"),
        (png(8, 8, chunk(b"zTXt", b"Comment\x00\x00" + zlib.compress(bytes(80_000_000)))), "damaged|not a picture"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(data, reason):
    with pytest.raises(BadImage, match=reason) as caught:
        decode(data, 16)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 150


def test_many_text_chunks_are_refused_or_skipped():
    info = PngImagePlugin.PngInfo()
    for number in range(70):
        info.add_text(f"k{number}", "x" * 1_000_000, zip=True)
    with pytest.raises(BadImage):
        decode(encode(scene(), "PNG", pnginfo=info), 16)


def test_huge_pictures_cause_no_warning_of_pillows():
    code = "import sys; from fedss_jax.data.decode import decode\ntry: decode(sys.stdin.buffer.read(), 8)\n"
    code += "except Exception as bad: print(bad)"
    root = Path(__file__).parent.parent
    for width in (10_000, 100_000):
        done = subprocess.run([sys.executable, "-c", code], input=png(width, 9_000), capture_output=True, cwd=root)
        assert b"too large" in done.stdout and not done.stderr


@pytest.mark.parametrize("form", SAMPLES)
def test_any_damage_is_a_bad_image_or_a_picture(form):
    rng, good = np.random.default_rng(0), np.frombuffer(SAMPLES[form], np.uint8)
    refused = 0
    for trial in range(150):
        data = good.copy()
        if trial % 3 == 0:
            data = data[: rng.integers(len(data))]
        else:
            places = rng.integers(0, len(data) if trial % 3 == 1 else 64, rng.integers(1, 6))
            data[places] ^= rng.integers(1, 256, len(places), np.uint8)
        try:
            assert decode(data.tobytes(), 8).shape == (8, 8, 3)
        except BadImage:
            refused += 1
    assert refused > 30
