"""FedSS on the embedded glyphs: characters are classes, font faces are their pictures. No download.

    python launch.py --config=configs/glyphs.py                 retrieval of characters never seen in training
    python launch.py --config=configs/glyphs.py:classification  known characters in font faces never seen
    python launch.py --config=configs/glyphs.py:block           clients are Unicode blocks, of all sizes
    python launch.py --config=configs/glyphs.py:script          clients are scripts
    python launch.py --config=configs/glyphs.py:smoke           a few rounds, in seconds

Variants combine with commas: configs/glyphs.py:classification,block,smoke.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from configs import common

# Found with configs/sweeps/glyphs_tuning.py, on validation classes.
TUNED = {
    "fedss": {"learning_rate": 0.025, "class_norm": 0.2},
    "negonly": {"learning_rate": 0.0125, "class_norm": 1.0},
    "posonly": {"learning_rate": 0.05, "class_norm": 1.0},
    "fedaws": {"learning_rate": 0.05, "class_norm": 1.0},
    "fullsoftmax": {"learning_rate": 0.025, "class_norm": 0.2},
    "centralized": {"learning_rate": 0.1, "class_norm": 0.2},
}


def get_config(variant: str = "") -> ConfigDict:
    chosen = common.parse_variant(
        variant,
        task=("retrieval", "classification"),
        partition=("equal", "block", "script"),
        smoke=False,
    )
    config = common.get_config()
    config.rounds = 200
    config.clients_per_round = 32
    config.num_negatives = 20
    config.eval.every = 25

    config.tuned = ConfigDict(TUNED)
    config.fedaws.weight = 1000.0  # tuned as well
    config.model.name = "small"
    config.model.options = ConfigDict(dict(layers=((32, 8, 4), (64, 3, 2)), groups=4))

    data = config.data
    data.name = "glyphs"
    data.task = chosen["task"]
    data.partition = chosen["partition"]
    data.classes_per_client = 20
    data.train_classes = 2000  # retrieval: these, 500 to tune on, and the rest to test on
    data.validation_classes = 500
    data.images_per_class = 5  # as in Stanford Online Products
    data.test_faces = ("DejaVuSans-Oblique", "DejaVuSerif-BoldItalic", "STIXGeneralBol")
    data.validation_faces = ("DejaVuSansMono-BoldOblique", "STIXGeneralItalic")
    data.font_dirs = ()  # folders with more fonts (.ttf, .otf, .ttc): more characters, more classes
    data.shift, data.scale, data.slant, data.noise = 2.0, 0.1, 0.1, 0.1  # augmentation
    data.seed = 0  # of the split and of who holds what

    if data.partition != "equal":  # there are only 16 scripts and 58 blocks
        config.clients_per_round = 8
        data.images_per_class = 0
    if data.task == "classification":
        data.images_per_class = 0
    if chosen["smoke"]:
        config.rounds = 4
        config.clients_per_round = 8
        config.eval.every = 2
        config.eval.max_train_examples = 500
        data.train_classes = 200
        data.validation_classes = 3700
    return config
