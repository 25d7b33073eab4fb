"""Your own pictures.

    python launch.py --config=configs/folder.py --config.data.root=DIR
    python launch.py --config=configs/folder.py --config.data.root=DIR --config.data.csv=clients.csv
    python launch.py --config=configs/folder.py:retrieval --config.data.root=DIR

DIR/CLASS/*.jpg: a folder for each class (png, webp, bmp, gif and tiff work too); clients of labels_per_client classes
are made up. DIR/train/CLASS/ and DIR/test/CLASS/ if the two are apart.
Or a table DIR/clients.csv with the header client,image,label and paths below DIR: then the clients are your own.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import common


def get_config(variant: str = "") -> ConfigDict:
    chosen = common.parse_variant(variant, task=("classification", "retrieval"))
    config = common.get_config()
    config.rounds = 500
    config.clients_per_round = 0  # up to 10, as many as there are
    config.num_negatives = -1  # as many as fit, up to 20
    config.client.learning_rate = 0.01
    config.eval.every = 50
    config.eval.batch_size = 256

    common.use_mobilenet(config)
    config.model.class_norm = 0.25

    data = config.data
    data.name = "folder"
    data.root = ""
    data.csv = ""  # who holds what: a table client,image,label, its paths below root
    data.test_csv = ""  # what to test on: a table image,label
    data.task = chosen["task"]
    data.num_clients = 0  # without a table: so many clients; 0 for the fewest that hold all classes
    data.labels_per_client = 0  # 0: a tenth of the classes, at most 20
    data.test_share = 0.2  # held out where there is no test part: of each class's pictures, or of the classes
    data.seed = 0  # of the split and of who holds what
    common.add_picture_options(data)
    return config
