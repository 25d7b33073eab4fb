"""What every config has, with the paper's values where the paper gives them."""

from __future__ import annotations

from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from fedss_jax.types import UserError


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.seed = 0
    config.method = "fedss"  # fedss, negonly, posonly, fedaws, fullsoftmax or centralized
    config.rounds = 2000
    config.clients_per_round = 32  # K; 0: up to 10
    config.over_selection = 0.0  # share of clients that are chosen beyond K; the first K to finish count
    config.deadline = (
        0.0  # who takes longer is left out; 1 is what a client of mean size and median speed takes; 0: none
    )
    config.clients_per_step = 0  # of them under way on a device at a time; 0: as many as keep it busy
    config.rounds_per_dispatch = 0  # that devices make before the host looks again; 0: about a quarter of a second's
    config.num_negatives = 20  # m: how many classes besides its own a client asks for; -1: as many as fit, up to 20
    config.correct_logits = True  # subtract log(m / (n - |P_k|)) from the negatives' logits
    config.extra_negatives = False  # negonly draws |P_k| - 1 more: as many competitors as in fedss

    config.client = ConfigDict()
    config.client.learning_rate = placeholder(float)  # unset: the method's own, from `tuned`
    config.client.batch_size = 32
    config.client.epochs = 1
    config.client.part_size = 0  # examples of a batch that are computed at a time; 0: what suits the clients' sizes

    config.server = ConfigDict()
    config.server.optimizer = "sgd"  # any optimizer of optax by name: adam is FedAdam, yogi FedYogi
    config.server.learning_rate = 1.0
    config.server.options = "momentum=0.9"  # its other arguments: "b1=0.9,b2=0.99,eps=1e-3"
    config.server.shard_rows = (
        "auto"  # yes: each of several devices keeps a share of W's rows; no: all keep all of them
    )
    config.server.row_weighting = "cohort"  # a row's update is averaged over the cohort, or its "holders"

    config.server.clip_norm = 0.0  # longer updates (encoder and rows together) are shortened to this; 0: none are
    config.server.clip_quantile = 0.0  # the bound moves to where this share of updates is within it; 0: it stays

    config.faults = ConfigDict()  # what goes wrong, drawn for every client in every round: docs/faults.md
    config.faults.dropout = 0.0  # share of the chosen clients that do not report
    config.faults.spread = 0.0  # of clients' speeds: standard deviation of the logarithm
    config.faults.nan = 0.0  # share of the reporting clients that send NaN
    config.faults.scaled = 0.0  # ... that send their update times `scale`
    config.faults.scale = 1000.0

    config.fedaws = ConfigDict()
    config.fedaws.margin = 0.5  # class vectors closer than this cosine distance are pushed apart
    config.fedaws.weight = 0.1  # the step's size, times the server's learning rate; tune it on a log scale
    config.fedaws.neighbours = 0  # only so many nearest classes of each class; 0 for all
    config.fedaws.touched_only = False  # only classes that the round's clients hold

    config.centralized = ConfigDict()
    config.centralized.updates_per_round = 0  # 0: as many as all clients of a round make together
    config.centralized.optimizer = "sgd"  # any of optax, with client.learning_rate
    config.centralized.options = ""  # its other arguments: "momentum=0.9"
    config.centralized.warmup = 0  # updates over which the learning rate rises from 0
    config.centralized.cosine = False  # whether it then falls to 0 over the run, along a cosine

    config.model = ConfigDict()
    config.model.name = "small"
    config.model.dim = 64  # d
    config.model.dtype = "float32"  # what it computes in: float32 or bfloat16
    config.model.logit_scale = 20.0
    config.model.class_norm = placeholder(float)  # length of W's rows at the start; unset: from `tuned`
    config.model.options = ConfigDict()  # the encoder's own arguments

    config.tuned = ConfigDict()  # method -> its client.learning_rate and model.class_norm, found on validation data

    config.init_from = ""  # an encoder to start from: encoder.safetensors of another run, or torchvision's weights
    config.init_from_head = True  # False: its last layer, from pooled features to embeddings, starts at random

    config.wandb = ""  # a project of Weights & Biases to log to as well; needs pip install wandb

    config.data = ConfigDict()
    config.data.residency = "auto"  # where training images stay: device, host, disk, or the first that has room

    config.checkpoint = ConfigDict()
    config.checkpoint.every = 100  # rounds; 0: only at the end, and when the run is told to stop
    config.checkpoint.keep = 2  # the newest so many, and the best by its score besides
    config.checkpoint.on_error = "continue"  # or "stop", when one cannot be written

    config.eval = ConfigDict()
    config.eval.every = 100  # rounds
    config.eval.split = "test"  # or "validation", to tune on
    config.eval.batch_size = 1024
    config.eval.max_train_examples = 5000  # of them, for the training accuracy
    return config


def use_mobilenet(config: ConfigDict) -> None:
    config.model.name = "mobilenet_v3_large"  # or mobilenet_v3_small, with the same options
    config.model.options = ConfigDict()
    config.model.options.groups = 8  # of GroupNorm
    config.model.options.width = 1.0  # times the usual number of channels
    config.model.options.hidden = 0  # width of a layer between pooled features and embedding; 0: none
    config.model.options.depth = 0  # only the first so many blocks; 0: all
    config.model.options.remat = False  # work activations out again for the gradient: less memory, more time
    config.model.options.convolution = "auto"  # by platform; or cpu, tpu, gpu: what suits one of these


def add_picture_options(data: ConfigDict) -> None:
    """How pictures on disk become examples; every source of pictures has these."""
    data.image_size = 256  # pictures are resized to this many pixels a side and kept so ...
    data.crop = 224  # ... and the encoder sees this many: a random part in training, the middle in evaluation
    data.flip = True  # mirror left and right at random in training
    data.on_bad_image = "skip"  # pictures that are missing or damaged: "skip" and count them, or "stop"
    data.max_bad_share = 0.01  # skip no more than this share of all pictures
    data.cache_dir = ""  # where resized pictures are kept; unset: $FEDSS_CACHE, else the user's cache folder
    data.workers = 0  # pictures decoded at a time; 0: one a core


def replace_data(config: ConfigDict, name: str) -> ConfigDict:
    """An empty config.data for another source, but for what all have."""
    residency = config.data.residency
    config.data = ConfigDict()
    config.data.residency = residency
    config.data.name = name
    return config.data


def use_standin(config: ConfigDict, chosen: dict[str, Any], counts: dict[str, Any], smoke: dict[str, Any]) -> None:
    """If a variant asks for it, made-up pictures in the same number, or in the fewer of `smoke`, replace the data."""
    if chosen["smoke"]:
        use_smoke(config)
        counts = counts | smoke
    elif not chosen["standin"]:
        return
    crop, image_size = config.data.crop, config.data.image_size
    data = replace_data(config, "standin")
    # Made as they are asked for, round by round: the way of pictures that are read from disk.
    data.residency = "disk"
    data.update(image_size=image_size, crop=crop, flip=True, seed=0, **counts)
    config.init_from = ""


def use_smoke(config: ConfigDict) -> None:
    """Few rounds, few clients, small pictures: whether all of it works, in a minute on two cores."""
    config.rounds = 4
    config.clients_per_round = 2
    config.num_negatives = 10
    config.client.batch_size = 8
    config.eval.every = 2
    config.eval.batch_size = 64
    config.eval.max_train_examples = 64
    config.data.image_size, config.data.crop = 40, 32
    config.model.options.depth = 2  # of the encoder's blocks: most of a short run is compiling


def glorot_norm(num_classes: int, dim: int) -> float:
    """The length of W's rows under Glorot's initialization, which the paper's framework uses unless told otherwise."""
    return round((2 * dim / (num_classes + dim)) ** 0.5, 3)


def parse_variant(text: str, **variants: Any) -> dict[str, Any]:
    """The part of --config=FILE:TEXT after the colon, such as "classification,smoke,classes=3000".

    variants: name -> default. A tuple of strings is a choice, its first entry the default: one of its words chooses.
    A bool is set by its bare name. Anything else is given as name=value, in the type of its default. What is left
    over is an error.
    """
    values = {name: v[0] if isinstance(v, tuple) else v for name, v in variants.items()}
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = word.partition("=")
        choices = [key for key, v in variants.items() if isinstance(v, tuple) and word in v]
        if choices:
            values[choices[0]] = word
        elif not equals and isinstance(variants.get(name), bool):
            values[name] = True
        elif equals and name in variants and not isinstance(variants[name], (bool, tuple)):
            try:
                values[name] = type(variants[name])(value)
            except ValueError:
                kind = type(variants[name]).__name__
                raise UserError(f"config variant {word!r}: {value!r} is no {kind}") from None
        else:
            raise UserError(f"config variant {word!r} does not exist; choose from {_known(variants)}")
    return values


def _known(variants: dict[str, Any]) -> str:
    words: list[str] = []
    for name, default in variants.items():
        words += default if isinstance(default, tuple) else [name if default is False else f"{name}=..."]
    return ", ".join(words)
