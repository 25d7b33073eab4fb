"""From an encoded picture to pixels of one shape.

The whole picture is resized to a square, as in the paper; nothing is cut off. What is transparent becomes white, and
colour profiles are ignored. Pictures come from strangers: whatever is wrong with one is a `BadImage`, and a header
that claims a huge picture is refused before anything is decoded.
"""

from __future__ import annotations

import io
import warnings

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from fedss_jax.data.index import BadImage

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")  # and MPO, which Pillow opens as JPEG
MAX_PIXELS = 89_478_485  # where Pillow begins to warn as well: a quarter of a gigabyte of RGB

# What Pillow warns of (odd metadata, huge pictures) is either harmless or refused below. Once for all, as filters
# are shared by all threads.
warnings.filterwarnings("ignore", module=r"PIL\.")

UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode(data: bytes, size: int) -> np.ndarray:
    """The picture as uint8 [size, size, 3], upright; of an animation, its first frame. Raises BadImage.

    A reason is a few words, then details in parentheses, so that reasons can be counted.
    """
    if not data:
        raise BadImage("empty file")
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
            width, height = picture.size
            if width * height > MAX_PIXELS:
                raise BadImage(f"too large ({width} x {height} pixels; at most {MAX_PIXELS:,} are decoded)")
            if width * height == 0:
                raise BadImage("damaged (it has no pixels)")
            # JPEG can be decoded at a half, a quarter or an eighth of its size in less time. Twice the wanted size is
            # kept: what is left for the filter to do is then hardly different.
            drafted = picture.draft(None, (2 * size, 2 * size))
            picture.load()
            square = _rgb(picture).resize((size, size), Image.Resampling.BILINEAR, box=drafted and drafted[1])
            turn = UPRIGHT.get(_orientation(picture))
            # A square can be turned after it is resized, when there is less of it.
            return np.array(square if turn is None else square.transpose(turn))
    except BadImage:
        raise
    except UnidentifiedImageError:
        raise BadImage(f"not a picture ({', '.join(FORMATS)} can be read)") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise BadImage(f"too large (at most {MAX_PIXELS:,} pixels are decoded)") from None
    except Exception as error:  # Pillow raises nearly anything on a damaged file
        what = " ".join(str(error).split())[:100]
        raise BadImage(f"damaged ({what or type(error).__name__})") from None


def _rgb(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I;16"):
        # convert() would clip these to 0 .. 255.
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    if picture.mode in ("I", "F"):
        raise BadImage(f"no known range of brightness (pixels are of mode {picture.mode})")
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    picture = picture.convert("RGBA")
    white = Image.new("RGB", picture.size, "white")
    white.paste(picture, mask=picture)
    return white


def _orientation(picture: Image.Image) -> int:
    try:
        return picture.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # damaged metadata is no reason to refuse the picture
        return 1
