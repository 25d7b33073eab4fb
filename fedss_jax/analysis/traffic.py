"""What travels between the server and a client in a round, for the paper's two main experiments.

    python -m fedss_jax.analysis.traffic
    python -m fedss_jax.analysis.traffic --figure=share.svg

prints parameter counts, the class matrix's share of the model, bytes and savings, beside what the paper says; the
figure is the paper's figure 7, that share over the number of classes for several embedding sizes.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax

from fedss_jax import models
from fedss_jax.report import figures

BYTES = 4  # a float32 parameter


class Traffic(NamedTuple):
    """Parameters of a model, and of what a client gets of it."""

    encoder: int
    class_matrix: int  # n * d
    requested: int  # |S_k| * d

    @property
    def share(self) -> float:
        """Of the class matrix in the whole model."""
        return self.class_matrix / self.model

    @property
    def model(self) -> int:
        return self.encoder + self.class_matrix

    @property
    def client(self) -> int:
        return self.encoder + self.requested

    @property
    def saved(self) -> float:
        """How much less than the whole model a client receives, and sends."""
        return 1 - self.client / self.model


def count(encoder_parameters: int, num_classes: int, requested: int, dim: int) -> Traffic:
    """requested: |S_k|, the classes that a client asks for."""
    return Traffic(encoder_parameters, num_classes * dim, requested * dim)


def layer_share(name: str, dims: Sequence[int], num_classes: Sequence[int]) -> dict[int, dict[int, float]]:
    """The class matrix's share of an encoder's and its own parameters: d -> n -> share."""
    return {d: {n: count(encoder_parameters(name, d), n, 0, d).share for n in num_classes} for d in dims}


@functools.cache
def encoder_parameters(name: str, dim: int, **options: int) -> int:
    """Counted on the shapes alone: nothing is computed. Inputs are 224 x 224 pictures."""
    model = models.create(name, image_shape=(224, 224, 3), dim=dim, dtype="float32", options=options)
    return models.count_parameters(jax.eval_shape(model.init, jax.random.key(0)))


class Setting(NamedTuple):
    """An experiment of the paper, and what the paper says of it."""

    name: str
    num_classes: int
    requested: int
    dim: int
    share: str
    saved: str


PAPER = (
    Setting("Stanford Online Products", 11318, 100, 64, "16 %", "16 %"),
    Setting("Landmarks-User-160k", 2028, 170, 64, "3.4 %", "3.38 %"),
    Setting("Stanford Online Products", 11318, 100, 1280, "-", "79 %"),
    Setting("Landmarks-User-160k", 2028, 170, 1280, "-", "38 %"),
)
HEADS = {"960 -> d": 0, "960 -> 1280 -> d": 1280}  # the paper does not say which; the first is this project's


def table() -> str:
    """The paper's settings with each reading of its embedding head."""
    columns = (
        ("data set", "{:<25}"),
        ("d", "{:>5}"),
        ("|S_k|", "{:>6}"),
        ("head", "{:<17}"),
        ("encoder", "{:>10}"),
        ("class matrix", "{:>13}"),
        ("share", "{:>7}"),
        ("paper", "{:>6}"),
        ("client MB", "{:>10}"),
        ("full MB", "{:>8}"),
        ("saved", "{:>7}"),
        ("paper", "{:>7}"),
    )

    def line(*cells: str) -> str:
        return " ".join(form.format(cell) for (_, form), cell in zip(columns, cells, strict=True)).rstrip()

    lines = [line(*(title for title, _ in columns))]
    for setting in PAPER:
        for head, hidden in HEADS.items():
            if hidden == setting.dim:
                continue
            encoder = encoder_parameters("mobilenet_v3_large", setting.dim, hidden=hidden)
            traffic = count(encoder, setting.num_classes, setting.requested, setting.dim)
            lines.append(
                line(
                    setting.name,
                    f"{setting.dim}",
                    f"{setting.requested}",
                    head,
                    f"{traffic.encoder:,}",
                    f"{traffic.class_matrix:,}",
                    f"{traffic.share:.1%}",
                    setting.share,
                    f"{traffic.client * BYTES / 1e6:.2f}",
                    f"{traffic.model * BYTES / 1e6:.2f}",
                    f"{traffic.saved:.1%}",
                    setting.saved,
                )
            )
    return "\n".join(lines)


DIMS = (64, 128, 256, 512, 1280)
NUM_CLASSES = (100, 1_000, 2_028, 11_318, 21_841, 100_000, 1_000_000)  # the paper's three among round numbers


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="traffic", description=__doc__.splitlines()[0])
    parser.add_argument("--figure", type=Path, help="where to draw the class matrix's share, as .svg")
    options = parser.parse_args(arguments)
    print(table())
    print(
        "\nMobileNetV3-Large with GroupNorm, float32; MB a client receives in a round, and sends back."
        "\nThe paper's shares imply an encoder of about 3.7 million parameters, which no standard MobileNetV3 has."
    )
    if options.figure:
        figures.save(figures.layer_share(layer_share("mobilenet_v3_large", DIMS, NUM_CLASSES)), options.figure)
        print(f"{options.figure} shows the share of W over n")


if __name__ == "__main__":
    main()
