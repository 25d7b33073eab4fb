"""Many small pictures on one sheet, which a page shows parts of."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedss_jax.types import Images

SIDE = 48  # pixels, at most
AT_A_TIME = 64  # pictures that are read; whole ones of a large data set would fill the memory
QUALITY = 82  # of WebP: fine enough at this size, and a page of three thousand stays below two megabytes


def are_pictures(images: Images) -> bool:
    """Whether examples [N, H, W, C] can be looked at; features cannot."""
    return len(images.shape) == 4 and images.dtype == np.uint8 and images.shape[3] in (1, 3)


def write_sheet(path: Path, images: Images, rows: np.ndarray) -> dict[str, Any]:
    """A WebP file with the pictures of these rows, line by line; returns how they lie on it."""
    side = min(SIDE, max(images.shape[1:3]))
    columns = max(1, math.ceil(math.sqrt(len(rows))))
    sheet = Image.new("RGB", (columns * side, max(1, math.ceil(len(rows) / columns)) * side))
    for start in range(0, len(rows), AT_A_TIME):
        for i, pixels in enumerate(np.asarray(images[rows[start : start + AT_A_TIME]]), start):
            picture = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
            picture.thumbnail((side, side))
            left, top = i % columns * side, i // columns * side
            sheet.paste(picture, (left + (side - picture.width) // 2, top + (side - picture.height) // 2))
    sheet.save(path, "WEBP", quality=QUALITY)
    return {"side": side, "columns": columns, "rows": sheet.height // side}
