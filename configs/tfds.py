"""Any data set of TensorFlow Datasets that has pictures and labels. TensorFlow itself is needed only to prepare one.

    python launch.py --config=configs/tfds.py --config.data.dataset=cifar100 --config.data.data_dir=DIR
    python launch.py --config=configs/tfds.py:retrieval --config.data.dataset=cars196

The data set must have been prepared as array_record files (tfds build --file_format=array_record), or be with
--config.data.download.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import common, folder


def get_config(variant: str = "") -> ConfigDict:
    chosen = common.parse_variant(variant, task=("classification", "retrieval"))
    config = folder.get_config()
    data = common.replace_data(config, "tfds")
    data.dataset = ""  # such as cifar100, name:1.0.0 or name/config
    data.data_dir = ""  # where it was prepared; unset: TFDS's own folder
    data.train_split = "train"
    data.test_split = "test"  # unset: a fifth is held out
    data.image_key = "image"
    data.label_key = "label"
    data.client_key = ""  # a feature that says whose an example is; unset: clients are made up
    data.task = chosen["task"]
    data.num_clients = 0  # 0: the fewest that hold all classes
    data.labels_per_client = 0  # 0: a tenth of the classes, at most 20
    data.download = False  # True: let TFDS fetch and prepare it
    data.seed = 0
    common.add_picture_options(data)
    return config
