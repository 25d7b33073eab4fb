"""Table 1 on glyphs: every method on known characters in font faces never seen in training, three seeds.

    python launch.py --mode=sweep --config=configs/sweeps/glyphs_classification.py --workdir=runs/glyphs1 --jobs=2

Rates are those tuned for retrieval (configs/sweeps/glyphs_tuning.py); with its variant :classification the tuning sweep
finds others for this task.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import glyphs
from configs.sweeps import paper


def get_config(variant: str = "") -> ConfigDict:
    return glyphs.get_config(f"classification,{variant}")


def sweep(add: paper.Add) -> None:
    paper.every_method(add, num_negatives=(5, 10, 20, 40, 80))
