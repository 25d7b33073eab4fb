"""Table 3 of the paper: every method on ImageNet-21k, three seeds. The data's folder: see configs/imagenet21k.py.

    python launch.py --mode=sweep --config=configs/sweeps/imagenet21k.py --config.data.root=DIR --workdir=runs/in21k

fedaws.weight has not been tuned on this data: do so first, on --config.eval.split=validation. The spread-out step over
all pairs of 21,841 classes takes long; --config.fedaws.neighbours=100 looks only at the nearest.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import imagenet21k
from configs.sweeps import paper


def get_config(variant: str = "") -> ConfigDict:
    return imagenet21k.get_config(variant)


def sweep(add: paper.Add) -> None:
    paper.every_method(add, num_negatives=(50, 100, 200, 400, 800))
