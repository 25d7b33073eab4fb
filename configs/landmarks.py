"""Landmarks-User-160k, as in section 5 of the paper (arXiv 2203.04888): landmarks recognized by 1,262 photographers.
MobileNetV3-Large with GroupNorm, started from ImageNet-1k.

    python launch.py --config=configs/landmarks.py --config.data.root=DIR --config.init_from=encoder.safetensors
    python launch.py --config=configs/landmarks.py:gld23k    the small federation of the same kind
    python launch.py --config=configs/landmarks.py:standin   the same shapes on made-up pictures; needs no data
    python launch.py --config=configs/landmarks.py:smoke     a minute on two cores

DIR has federated_train.csv and test.csv, and the pictures: IMAGE_ID.jpg in one folder, or nested a/b/c/ as the Google
Landmarks Dataset v2 comes. configs/pretrain.py makes an encoder to start from.

Paper, test top-1 in % after 5,000 rounds, 3 seeds: FedSS 51.7 / 53.3 / 54.9 / 55.3 / 56.0 for |S_k| = 95 / 100 / 110 /
130 / 170 (num_negatives = 5 / 10 / 20 / 40 / 80), PosOnly 43.1, FedAwS 42.5, NegOnly 7.1 to 26.5, FullSoftmax 56.8,
Centralized 59.5.

Time: on a v5e-8 with --config.model.dtype=bfloat16 the TPU compiler estimates 0.52 s for a round, 43 minutes
for the run (--mode=plan, docs/pods.md; evaluation apart). Not yet measured on a chip.
"""

from __future__ import annotations

from typing import Any

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = "") -> ConfigDict:
    chosen = common.parse_variant(variant, federation=("landmarks_user_160k", "gld23k"), standin=False, smoke=False)
    config = common.get_config()
    config.rounds = 5000
    config.clients_per_round = 64
    config.num_negatives = 80  # |S_k| is about 170
    config.client.learning_rate = 0.01
    config.eval.every = 250
    config.eval.batch_size = 256

    common.use_mobilenet(config)
    config.init_from = "runs/pretrain/encoder.safetensors"

    data = config.data
    data.name = chosen["federation"]
    data.root = f"data/{data.name}"
    data.images = ""  # the pictures' folder; unset: looked for below root
    data.seed = 0  # of what is held out to tune on
    common.add_picture_options(data)

    counts: dict[str, Any] = dict(task="classification", clients="natural", test_classes=0)
    if data.name == "gld23k":
        counts |= dict(num_classes=203, num_clients=233, labels_per_client=20, images=23080, test_images=1959)
    else:
        counts |= dict(num_classes=2028, num_clients=1262, labels_per_client=90, images=164172, test_images=19526)
    config.model.class_norm = common.glorot_norm(counts["num_classes"], config.model.dim)  # the paper does not say
    smoke = dict(num_classes=100, num_clients=20, labels_per_client=8, images=400, test_images=60)
    common.use_standin(config, chosen, counts, smoke)
    return config
