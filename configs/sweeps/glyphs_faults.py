"""FedSS on glyphs with nothing wrong; with 30 % of clients that drop out, 5 % that send NaN and 5 % that send an update
times 1000; and the same without a bound on the length of updates, to show that the bound is what saves it.

python launch.py --mode=sweep --config=configs/sweeps/glyphs_faults.py --workdir=runs/glyphs_faults
"""

from __future__ import annotations

from collections.abc import Callable

from ml_collections import ConfigDict

from configs import glyphs

FAULTS = {"faults.dropout": 0.3, "faults.nan": 0.05, "faults.scaled": 0.05}


def get_config(variant: str = "") -> ConfigDict:
    return glyphs.get_config(variant)


def sweep(add: Callable[..., None]) -> None:
    add(method="fedss")
    add(method="fedss", **FAULTS, **{"server.clip_quantile": 0.8})
    add(method="fedss", **FAULTS)
