"""An encoder to start from: centralized training on ImageNet-1k, as the paper's SOP and Landmarks runs begin with.

    python launch.py --config=configs/pretrain.py --workdir=runs/pretrain --config.data.root=DIR
    python launch.py --config=configs/pretrain.py:tfds --workdir=runs/pretrain --config.data.data_dir=DIR
    python launch.py --config=configs/pretrain.py:smoke     a minute on two cores, on made-up pictures

DIR has train/SYNSET/*.JPEG and val/SYNSET/*.JPEG, or (tfds) imagenet2012 prepared as array_record files. The encoder
is written to runs/pretrain/encoder.safetensors, where configs/sop.py and configs/landmarks.py look for it.

The paper says only that a checkpoint was used. This is ordinary supervised training: 90 epochs in batches of 1,024,
SGD with momentum under a cosine, on the same normalized softmax as everything here. It has not been run on the real
data yet.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import common, folder, tfds

IMAGES, EPOCHS = 1_281_167, 90


def get_config(variant: str = "") -> ConfigDict:
    chosen = common.parse_variant(variant, source=("folder", "tfds"), smoke=False)
    config = (tfds if chosen["source"] == "tfds" else folder).get_config()
    config.method = "centralized"
    config.clients_per_round = 1  # there are none
    config.client.batch_size = 1024
    config.client.learning_rate = 0.4
    config.centralized.optimizer = "sgd"
    config.centralized.options = "momentum=0.9,nesterov=True"
    config.centralized.updates_per_round = 4  # a round's pictures are on the devices together
    config.centralized.warmup = 5 * IMAGES // 1024
    config.centralized.cosine = True
    config.rounds = EPOCHS * IMAGES // (1024 * config.centralized.updates_per_round)
    config.eval.every = 1000
    config.model.class_norm = 1.0

    data = config.data
    if chosen["source"] == "tfds":
        data.dataset = "imagenet2012"
        data.test_split = "validation"
    else:
        data.root = "data/imagenet"
    if chosen["smoke"]:
        config.centralized.updates_per_round = 2
        config.centralized.warmup = 2
        counts = dict(num_classes=20, num_clients=4, labels_per_client=5, images=400, test_classes=0, test_images=60)
        common.use_standin(config, chosen, counts | dict(task="classification", clients="equal"), smoke={})
        config.clients_per_round = 1  # there are none
    return config
