"""Table 4 of the paper: over-fitting on Stanford Online Products, training top-1 over all examples beside test MAP@10.

python launch.py --mode=sweep --config=configs/sweeps/overfitting.py --config.data.root=DIR --workdir=runs/overfitting
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import sop
from configs.sweeps import paper

TRAIN_EXAMPLES = 59_551


def get_config(variant: str = "") -> ConfigDict:
    config = sop.get_config(variant)
    config.eval.max_train_examples = TRAIN_EXAMPLES
    return config


def sweep(add: paper.Add) -> None:
    paper.overfitting(add, num_negatives=80)
