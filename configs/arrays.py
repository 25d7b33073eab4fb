"""Arrays of your own: small pictures, or features that another encoder made.

    python launch.py --config=configs/arrays.py --config.data.train=train.npz
    python launch.py --config=configs/arrays.py:images --config.data.train=DIR --config.data.test=OTHER_DIR
    python launch.py --config=configs/arrays.py:retrieval --config.data.train=train.npz

A .npz file with features [N, F] or images [N, H, W, C] (uint8), labels [N] and, if you like, clients [N]; or a folder
with features.npy, labels.npy, clients.npy, which may be larger than memory.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = "") -> ConfigDict:
    chosen = common.parse_variant(variant, kind=("features", "images"), task=("classification", "retrieval"))
    config = common.get_config()
    config.rounds = 200
    config.clients_per_round = 0  # up to 10, as many as there are
    config.num_negatives = -1  # as many as fit, up to 20
    config.client.learning_rate = 0.05
    config.eval.every = 25
    config.model.class_norm = 0.5
    if chosen["kind"] == "features":
        config.model.name = "linear"
        config.model.options = ConfigDict(dict(hidden=()))  # widths of layers in between, such as (256,)
    else:
        config.model.name = "small"
        config.model.options = ConfigDict(dict(layers=((32, 8, 4), (64, 3, 2)), groups=4))

    data = config.data
    data.name = "arrays"
    data.train = ""
    data.test = ""  # unset: test_share is held out
    data.task = chosen["task"]
    data.test_share = 0.2  # of each class's examples, or of the classes
    data.num_clients = 0  # where the data names no clients; 0 for the fewest that hold all classes
    data.labels_per_client = 0  # 0: a tenth of the classes, at most 20
    data.shift = 0  # pictures: shifted by up to so many pixels in training
    data.flip = False  # pictures: mirrored at random in training
    data.seed = 0  # of the split and of who holds what
    return config
