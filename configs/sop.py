"""Stanford Online Products, as in section 5 of the paper (arXiv 2203.04888): retrieval of products never seen in
training. MobileNetV3-Large with GroupNorm, started from ImageNet-1k.

    python launch.py --config=configs/sop.py --config.data.root=DIR --config.init_from=encoder.safetensors
    python launch.py --config=configs/sop.py:standin    the same shapes on made-up pictures; needs no data
    python launch.py --config=configs/sop.py:smoke      a minute on two cores

DIR is the unpacked archive (with Ebay_train.txt) or a TFDS-prepared directory. configs/pretrain.py makes an encoder to
start from; torchvision's MobileNetV3 weights work as well.

Paper, test MAP@10 in % after 2,000 rounds, 3 seeds: FedSS 25.2 / 25.8 / 26.1 / 26.4 / 26.5 for |S_k| = 25 / 30 / 40 /
60 / 100 (num_negatives = 5 / 10 / 20 / 40 / 80), PosOnly 19.7, FedAwS 20.0, NegOnly 15.5 to 16.7, FullSoftmax 25.7,
Centralized 25.4.

Time: on a v5e-8 with --config.model.dtype=bfloat16 the TPU compiler estimates 0.20 s for a round, 7 minutes
for the run (--mode=plan, docs/pods.md; evaluation apart). Not yet measured on a chip.
"""

from __future__ import annotations

from typing import Any

from ml_collections import ConfigDict

from configs import common

CLASSES = 11318


def get_config(variant: str = "") -> ConfigDict:
    chosen = common.parse_variant(variant, standin=False, smoke=False)
    config = common.get_config()
    config.rounds = 2000
    config.clients_per_round = 32
    config.num_negatives = 80  # |S_k| = 100
    config.client.learning_rate = 0.01
    config.eval.every = 100
    config.eval.batch_size = 256

    common.use_mobilenet(config)
    config.model.class_norm = common.glorot_norm(CLASSES, config.model.dim)  # the paper does not say
    config.init_from = "runs/pretrain/encoder.safetensors"

    data = config.data
    data.name = "stanford_online_products"
    data.root = "data/Stanford_Online_Products"
    data.download = False  # True: let TFDS fetch and prepare it into data.root
    data.num_clients = 596
    data.labels_per_client = 20
    data.seed = 0  # of who holds what
    common.add_picture_options(data)

    counts: dict[str, Any] = dict(
        task="retrieval",
        clients="equal",
        num_classes=CLASSES,
        num_clients=data.num_clients,
        labels_per_client=data.labels_per_client,
        images=59551,
        test_classes=11316,
        test_images=60502,
    )
    smoke = dict(num_classes=200, num_clients=12, images=1200, test_classes=12, test_images=60)
    common.use_standin(config, chosen, counts, smoke)
    return config
