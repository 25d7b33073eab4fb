"""How much of a device's work is real, and the choices that keep it so. On the host, once, before a run begins."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

SMALLEST_PART = 16  # examples: with fewer, a small encoder loses more to thin products than it wins
FULL_ENOUGH, BUSY_ENOUGH = 0.95, 0.98  # better packing is not worth smaller parts, or fewer lanes
COHORTS = 16  # that are drawn to try a number of lanes on
MOST_LANES = {"cpu": 8}  # a CPU is fastest while what all lanes work on fits its cache
MOST_LANES_ELSEWHERE = 32
ROUNDS_AT_A_TIME = 512


def choose_part_size(sizes: np.ndarray, batch_size: int) -> int:
    """Into what parts batches are cut at clients of so many examples [clients]: the largest that fill up well."""
    divisors = [part for part in range(batch_size, 0, -1) if batch_size % part == 0]
    allowed = [part for part in divisors if part >= SMALLEST_PART] or [batch_size]
    for part in allowed:
        if sizes.sum() >= FULL_ENOUGH * (-(-sizes // part) * part).sum():
            return part
    return allowed[-1]


def longest_lane(steps: np.ndarray, lanes: int) -> int:
    """The number of steps that `lanes.pack` leaves to the longest lane."""
    loads = [0] * lanes
    for length in sorted(steps.tolist(), reverse=True):
        heapq.heapreplace(loads, loads[0] + length)
    return max(loads)


def choose_lanes(steps: np.ndarray, clients_per_round: int, devices: int, platform: str) -> int:
    """How many lanes a device gets where clients have so many steps [clients]: as many as stay busy.

    The more lanes, the more there is to compute at once; but a round lasts as long as its longest client, and lanes
    that have come to their end before only keep the device warm.
    """
    rng = np.random.default_rng(0)
    cohorts = [rng.choice(steps, clients_per_round, replace=False) for _ in range(COHORTS)]
    most = min(MOST_LANES.get(platform, MOST_LANES_ELSEWHERE), -(-clients_per_round // devices))

    def busy(lanes: int) -> float:
        """The share of a device's time, over some cohorts."""
        spent = sum(devices * lanes * longest_lane(cohort, devices * lanes) for cohort in cohorts)
        return sum(int(cohort.sum()) for cohort in cohorts) / spent

    shares = {lanes: busy(lanes) for lanes in range(most, 0, -1)}
    return next(lanes for lanes, share in shares.items() if share >= BUSY_ENOUGH * max(shares.values()))


def most_places(examples_by_device: Callable[[jax.Array], jax.Array], rounds: int) -> int:
    """The most examples that a device takes in any of a run's rounds; rounds [R] -> [R, devices] counts them.

    Cohorts follow from the seed, so that this is known beforehand, and no more room is made than is needed.
    """
    counted = jax.jit(examples_by_device)
    starts = range(0, rounds, ROUNDS_AT_A_TIME)
    return max(int(counted(jnp.minimum(start + jnp.arange(ROUNDS_AT_A_TIME), rounds - 1)).max()) for start in starts)
