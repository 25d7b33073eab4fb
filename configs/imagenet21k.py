"""ImageNet-21k, as in appendix A of the paper (arXiv 2203.04888): 25,691 clients, 21k classes, from scratch.
MobileNetV3-Large with GroupNorm.

    python launch.py --config=configs/imagenet21k.py --config.data.root=DIR
    python launch.py --config=configs/imagenet21k.py:standin   the same shapes on made-up pictures; needs no data
    python launch.py --config=configs/imagenet21k.py:smoke     a minute on two cores

DIR has a folder for each synset. Resized to 256 x 256, 14 million pictures take 2.8 TB in data.cache_dir; with
data.image_size=128 and data.crop=112 they take 0.7 TB.

Paper, test top-1 in % after 25,000 rounds, 3 seeds: FedSS 9.1 / 9.2 / 9.9 / 10.0 / 9.8 for |S_k| = 70 / 120 / 220 /
420 / 820 (num_negatives = 50 / 100 / 200 / 400 / 800), PosOnly 5.1, FedAwS 5.1, NegOnly 3.9 to 4.7, FullSoftmax 11.3,
Centralized 15.4. It does not say how many clients take part in a round: 64 here.

Time: on a v5e-8 with --config.model.dtype=bfloat16 the TPU compiler estimates 1.5 s for a round, 11 hours for
the run (--mode=plan, docs/pods.md; evaluation apart). Not yet measured on a chip.
"""

from __future__ import annotations

from typing import Any

from ml_collections import ConfigDict

from configs import common

CLASSES = 21841


def get_config(variant: str = "") -> ConfigDict:
    chosen = common.parse_variant(variant, standin=False, smoke=False)
    config = common.get_config()
    config.rounds = 25000
    config.clients_per_round = 64
    config.num_negatives = 400  # |S_k| = 420
    config.client.learning_rate = 0.001
    config.eval.every = 1000
    config.eval.batch_size = 256

    common.use_mobilenet(config)
    config.model.class_norm = common.glorot_norm(CLASSES, config.model.dim)  # the paper does not say

    data = config.data
    data.name = "imagenet21k"
    data.root = "data/imagenet21k"
    data.num_clients = 25691
    data.labels_per_client = 20
    data.seed = 0  # of the split and of who holds what
    common.add_picture_options(data)

    counts: dict[str, Any] = dict(
        task="classification",
        clients="equal",
        num_classes=CLASSES,
        num_clients=data.num_clients,
        labels_per_client=data.labels_per_client,
        images=11_360_000,
        test_classes=0,
        test_images=2_840_000,
    )
    smoke = dict(num_classes=300, num_clients=30, images=1200, test_images=60)
    common.use_standin(config, chosen, counts, smoke)
    return config
