"""Table 2 on glyphs: every method on retrieval of characters never seen in training, three seeds, each method with the
rates it was tuned to (configs/sweeps/glyphs_tuning.py).

python launch.py --mode=sweep --config=configs/sweeps/glyphs.py --workdir=runs/glyphs --jobs=2
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import glyphs
from configs.sweeps import paper


def get_config(variant: str = "") -> ConfigDict:
    return glyphs.get_config(variant)


def sweep(add: paper.Add) -> None:
    paper.every_method(add, num_negatives=(5, 10, 20, 40, 80))
