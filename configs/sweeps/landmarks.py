"""Table 1 of the paper: every method on Landmarks-User-160k, three seeds. The data's folder: see configs/landmarks.py.

    python launch.py --mode=sweep --config=configs/sweeps/landmarks.py --config.data.root=DIR --workdir=runs/landmarks

fedaws.weight has not been tuned on this data: do so first, on --config.eval.split=validation.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import landmarks
from configs.sweeps import paper


def get_config(variant: str = "") -> ConfigDict:
    return landmarks.get_config(variant)


def sweep(add: paper.Add) -> None:
    paper.every_method(add, num_negatives=(5, 10, 20, 40, 80))
