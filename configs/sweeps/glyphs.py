"""The README's table: every method on glyph retrieval, three seeds, each with the rates it was tuned to.

python launch.py --mode=sweep --config=configs/sweeps/glyphs.py --workdir=runs/glyphs --jobs=2
"""

from __future__ import annotations

from collections.abc import Callable

from ml_collections import ConfigDict

from configs import glyphs


def get_config(variant: str = "") -> ConfigDict:
    config = glyphs.get_config(variant)
    config.eval.every = 100
    return config


def sweep(add: Callable[..., None]) -> None:
    for seed in range(3):
        for num_negatives in (5, 20, 80):
            add(method="fedss", num_negatives=num_negatives, seed=seed)
        add(method="negonly", num_negatives=20, seed=seed)
        for method in ("posonly", "fedaws", "fullsoftmax", "centralized"):
            add(method=method, seed=seed)
