"""What the paper reports (arXiv 2203.04888, tables 1 to 4), and in which setting: it is shown only beside such runs.

Scores are shares, not per cent, as everywhere here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedss_jax.report.configs import flat

METHODS = {
    "fedss": "FedSS",
    "negonly": "NegOnly",
    "posonly": "PosOnly",
    "fedaws": "FedAwS",
    "fullsoftmax": "FullSoftmax",
    "centralized": "Centralized",
}
BEST_OF_RUNS = ("fullsoftmax", "centralized")  # of these the paper reports the best run, of others mean and deviation
SAMPLED = ("fedss", "negonly")  # those that draw num_negatives


class Figure(NamedTuple):
    mean: float
    deviation: float | None  # None: the best of three runs

    def __str__(self) -> str:
        if self.deviation is None:
            return f"{self.mean:.3f} (best)"
        digits = 3 if self.deviation >= 0.001 else 4  # as many as the paper gives
        return f"{self.mean:.{digits}f} ± {self.deviation:.{digits}f}"


class Experiment(NamedTuple):
    setting: Mapping[str, Any]  # config key -> the paper's value, or what tells whether a value is the paper's
    metric: str
    scores: Mapping[tuple[str, int | None], Figure]  # method, num_negatives if it draws any
    others: Mapping[tuple[str, int | None], tuple[str, Figure]] = {}  # a second metric that is reported of some


EVERYWHERE = {
    "model.name": "mobilenet_v3_large",
    "model.dim": 64,
    "model.logit_scale": 20.0,
    "model.options.width": 1.0,
    "model.options.depth": 0,
    "data.image_size": 256,
    "data.crop": 224,
    "client.batch_size": 32,
    "client.epochs": 1,
    "server.optimizer": "sgd",
    "server.learning_rate": 1.0,
    "server.options": "momentum=0.9",
    "server.row_weighting": "cohort",
    "server.clip_norm": 0.0,
    "server.clip_quantile": 0.0,
    "over_selection": 0.0,
    "deadline": 0.0,
    "faults.dropout": 0.0,
    "faults.spread": 0.0,
    "faults.nan": 0.0,
    "faults.scaled": 0.0,
    "centralized.optimizer": "sgd",
    "centralized.updates_per_round": 0,
    "correct_logits": True,
    "extra_negatives": False,
    "eval.split": "test",
}

STARTED = {"init_from": bool}  # from some encoder
FREE = (  # keys, or where they begin, that the paper leaves open or that no result depends on beyond rounding
    "method",  # these two are looked up
    "num_negatives",
    "seed",
    "clients_per_round",  # it is not told of ImageNet-21k
    "eval.batch_size",
    "eval.every",
    "eval.max_train_examples",
    "checkpoint.",
    "wandb",
    "rounds_per_dispatch",
    "clients_per_step",
    "client.part_size",
    "server.shard_rows",
    "data.root",
    "data.images",
    "data.cache_dir",
    "data.download",
    "data.workers",
    "data.residency",
    "data.on_bad_image",
    "data.max_bad_share",
    "data.seed",
    "data.flip",
    "model.class_norm",
    "model.dtype",
    "model.options.groups",
    "model.options.hidden",
    "model.options.convolution",
    "model.options.remat",
    "init_from_head",
    "faults.scale",
    "fedaws.",
    "centralized.cosine",
    "centralized.warmup",
    "centralized.options",
)


def _table(negatives: tuple[int, ...], *rows: tuple[str, Any]) -> dict[tuple[str, int | None], Figure]:
    """Rows as the paper prints them, in per cent: (mean, deviation) for each number of negatives, or just one."""
    found: dict[tuple[str, int | None], Figure] = {}
    for method, scores in rows:
        if method in SAMPLED:
            for m, (mean, deviation) in zip(negatives, scores, strict=True):
                found[method, m] = Figure(mean / 100, deviation / 100)
        elif method in BEST_OF_RUNS:
            found[method, None] = Figure(scores / 100, None)
        else:
            found[method, None] = Figure(scores[0] / 100, scores[1] / 100)
    return found


EXPERIMENTS = (
    Experiment(
        EVERYWHERE
        | STARTED
        | {
            "data.name": "landmarks_user_160k",
            "rounds": 5000,
            "clients_per_round": 64,
            "client.learning_rate": 0.01,
        },
        "eval/top1",
        _table(
            (5, 10, 20, 40, 80),
            ("fedss", [(51.7, 0.4), (53.3, 0.6), (54.9, 0.3), (55.3, 0.6), (56.0, 0.06)]),
            ("negonly", [(7.1, 3.7), (18.7, 0.4), (22.0, 0.8), (25.0, 0.4), (26.5, 1.4)]),
            ("posonly", (43.1, 0.2)),
            ("fedaws", (42.5, 0.4)),
            ("fullsoftmax", 56.8),
            ("centralized", 59.5),
        ),
    ),
    Experiment(
        EVERYWHERE
        | STARTED
        | {
            "data.name": "stanford_online_products",
            "rounds": 2000,
            "clients_per_round": 32,
            "client.learning_rate": 0.01,
            "data.num_clients": 596,
            "data.labels_per_client": 20,
        },
        "eval/map10",
        _table(
            (5, 10, 20, 40, 80),
            ("fedss", [(25.2, 0.2), (25.8, 0.2), (26.1, 0.1), (26.4, 0.12), (26.5, 0.03)]),
            ("negonly", [(15.5, 0.2), (16.2, 0.1), (16.3, 0.1), (16.5, 0.04), (16.7, 0.17)]),
            ("posonly", (19.7, 0.09)),
            ("fedaws", (20.0, 0.04)),
            ("fullsoftmax", 25.7),
            ("centralized", 25.4),
        ),
        {
            ("fedss", 80): ("train/top1", Figure(0.976, 0.002)),
            ("fullsoftmax", None): ("train/top1", Figure(0.999, None)),
            ("centralized", None): ("train/top1", Figure(0.999, None)),
        },
    ),
    Experiment(
        EVERYWHERE
        | {
            "data.name": "imagenet21k",
            "rounds": 25000,
            "client.learning_rate": 0.001,
            "data.num_clients": 25691,
            "data.labels_per_client": 20,
            "init_from": "",
        },
        "eval/top1",
        _table(
            (50, 100, 200, 400, 800),
            ("fedss", [(9.1, 0.4), (9.2, 0.1), (9.9, 0.3), (10.0, 0.5), (9.8, 0.5)]),
            ("negonly", [(3.9, 0.1), (4.2, 0.1), (4.3, 0.2), (4.4, 0.1), (4.7, 0.2)]),
            ("posonly", (5.1, 0.4)),
            ("fedaws", (5.1, 0.1)),
            ("fullsoftmax", 11.3),
            ("centralized", 15.4),
        ),
    ),
)


def _agrees(value: Any, with_paper: Any) -> bool:
    return bool(with_paper(value)) if callable(with_paper) else value == with_paper


def look_up(config: Mapping[str, Any]) -> dict[str, Figure]:
    """Metric -> what the paper reports for a run of this config; nothing if the setting is not the paper's."""
    for experiment in EXPERIMENTS:
        given = flat(config)
        if all(_agrees(given.get(key), value) for key, value in experiment.setting.items()):
            method = config["method"]
            which = method, config["num_negatives"] if method in SAMPLED else None
            found = {}
            if which in experiment.scores:
                found[experiment.metric] = experiment.scores[which]
            if which in experiment.others:
                metric, figure = experiment.others[which]
                found[metric] = figure
            return found
    return {}
