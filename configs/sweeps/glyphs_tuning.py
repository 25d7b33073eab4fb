"""How `tuned` in configs/glyphs.py was found: every method over the same grid, scored on validation classes.

    python launch.py --mode=sweep --config=configs/sweeps/glyphs_tuning.py --workdir=runs/tuning --jobs=2

The length of W's rows is in the grid because it sets W's own rate: a row's direction turns with lr / length^2.
FedAwS is PosOnly at the clients, so it takes PosOnly's rates, and only the weight of its spread-out step is tuned.
"""

from __future__ import annotations

from collections.abc import Callable

from ml_collections import ConfigDict

from configs import glyphs


def get_config(variant: str = "") -> ConfigDict:
    config = glyphs.get_config(variant)
    config.eval.split = "validation"
    config.seed = 100  # none of the table's seeds
    return config


# Where a method's best lay on the edge of the grid, one step beyond it.
BEYOND = (
    ("fedss", 0.025, 0.2),
    ("fullsoftmax", 0.05, 0.2),
    ("fullsoftmax", 0.025, 0.2),
    ("posonly", 0.05, 2.0),
    ("negonly", 0.00625, 1.0),
    ("negonly", 0.0125, 2.0),
    ("centralized", 0.2, 0.35),
    ("centralized", 0.1, 0.2),
)


def sweep(add: Callable[..., None]) -> None:
    grid = [
        (method, rate, norm)
        for rate in (0.0125, 0.025, 0.05, 0.1)
        for norm in (0.35, 1.0)
        for method in ("fedss", "negonly", "posonly", "fullsoftmax", "centralized")
    ]
    for method, rate, norm in (*grid, *BEYOND):
        add(**{"method": method, "client.learning_rate": rate, "model.class_norm": norm})
    for weight in (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0):
        add(**{"method": "fedaws", "fedaws.weight": weight})
