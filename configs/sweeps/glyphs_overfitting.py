"""Table 4 on glyphs: whether a method that knows its training characters by heart retrieves unseen ones less well.

python launch.py --mode=sweep --config=configs/sweeps/glyphs_overfitting.py --workdir=runs/glyphs_overfitting --jobs=2
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import glyphs
from configs.sweeps import paper


def get_config(variant: str = "") -> ConfigDict:
    config = glyphs.get_config(variant)
    if config.rounds == glyphs.get_config().rounds:  # not where a variant has made it shorter
        config.rounds = 5 * config.rounds  # five times the usual, until training accuracy hardly rises
        config.eval.every = 100
    config.eval.max_train_examples = 10_000  # all of them
    return config


def sweep(add: paper.Add) -> None:
    paper.overfitting(add, num_negatives=80)
