"""Table 2 of the paper: every method on Stanford Online Products, three seeds. The data's folder: see configs/sop.py.

    python launch.py --mode=sweep --config=configs/sweeps/sop.py --config.data.root=DIR --workdir=runs/sop

fedaws.weight has not been tuned on this data: do so first, on --config.eval.split=validation.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import sop
from configs.sweeps import paper


def get_config(variant: str = "") -> ConfigDict:
    return sop.get_config(variant)


def sweep(add: paper.Add) -> None:
    paper.every_method(add, num_negatives=(5, 10, 20, 40, 80))
