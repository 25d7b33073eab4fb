"""The cells that the paper's tables and figures are made of; the sweeps beside this file say for which data."""

from __future__ import annotations

from collections.abc import Callable, Sequence

SEEDS = range(3)
OTHERS = ("posonly", "fedaws", "fullsoftmax", "centralized")  # they draw no negatives

Add = Callable[..., None]


def every_method(add: Add, num_negatives: Sequence[int]) -> None:
    """One of the tables 1 to 3, with all that figures 1 to 5 need: also NegOnly with |P_k| - 1 more negatives."""
    for seed in SEEDS:
        for m in num_negatives:
            add(method="fedss", num_negatives=m, seed=seed)
            add(method="negonly", num_negatives=m, seed=seed)
            add(method="negonly", num_negatives=m, extra_negatives=True, seed=seed)
        for method in OTHERS:
            add(method=method, seed=seed)


def overfitting(add: Add, num_negatives: int) -> None:
    """Table 4: how well training classes are known, and unseen ones told apart."""
    for seed in SEEDS:
        add(method="fedss", num_negatives=num_negatives, seed=seed)
        for method in ("fullsoftmax", "centralized"):
            add(method=method, seed=seed)
