"""How much of a device's work is real, and the choices that keep it so. On the host, once, before a run begins."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# What it costs, in floating-point operations, that every part of a batch reads and writes all parameters some times.
# Measured on a CPU with the small encoder (benchmarks.ragged); accelerators have a similar ratio of speed to bandwidth.
OPERATIONS_PER_PARAMETER = 60
SMALLEST_PART = 4  # examples: with fewer, products of matrices get too thin
MOST_LANES = 64
BUSY_ENOUGH = 0.98  # of the best share: a better one is not worth fewer lanes
COHORTS = 16  # that are drawn to try a number of lanes on
ROUNDS_AT_A_TIME = 512


class Effort(NamedTuple):
    """What a client's sub-model takes; forwards, for one example."""

    parameters: int
    operations: float  # floating-point
    traffic: float  # bytes that its layers read and write


class Step(NamedTuple):
    """What all lanes of a device should do in a step.

    operations: enough to be worth starting.
    traffic: the most bytes that layers may pass on. What is kept for the gradient is a small part of it: on a CPU it
    should stay in the cache (a MobileNetV3 is fastest with four images at a time), elsewhere in the memory.
    overhead: what every part of a batch takes more than its examples and parameters do, in examples.
    """

    operations: float
    traffic: float
    overhead: float = 0.0


# For a TPU v5e by its compiler's estimates for a MobileNetV3 (--mode=plan): alone on a chip, a client takes 4.7 ms for
# 8 images, 7.2 for 16 and 13.6 for 32. Beside one other each takes 10.1 ms for 16, beside seven 18.0 for 32, so that it
# is faster to let them wait for each other. GPUs have not been measured.
STEPS = {"cpu": Step(5e8, 5e9), "tpu": Step(2e10, 2e11, overhead=4.0)}


def step_of(platform: str) -> Step:
    return STEPS.get(platform, Step(1e12, 2e11))


def choose(
    sizes: np.ndarray,
    effort: Effort,
    *,
    batch_size: int,
    epochs: int,
    clients_per_round: int,
    devices: int,
    platform: str,
    part_size: int = 0,
    lanes: int = 0,
    most_lanes: int = MOST_LANES,
) -> tuple[int, int]:
    """Examples in a part of a batch, and lanes of a device, for clients of so many examples [clients].

    What is given, not 0, stays as it is. most_lanes: that a device has room for.
    """
    part_size = part_size or choose_part_size(sizes, batch_size, effort, platform)
    steps = epochs * -(-sizes // part_size)
    return part_size, lanes or choose_lanes(steps, clients_per_round, devices, part_size, effort, platform, most_lanes)


def choose_part_size(sizes: np.ndarray, batch_size: int, effort: Effort, platform: str) -> int:
    """Into what parts batches are cut at clients of so many examples [clients]: what takes least.

    Small parts leave little of a last, partial batch empty; but each moves all parameters once more.
    """
    step = step_of(platform)
    room = step.traffic / max(effort.traffic, 1.0)  # in examples
    overhead = step.overhead + OPERATIONS_PER_PARAMETER * effort.parameters / max(effort.operations, 1.0)  # in examples
    smallest = min(SMALLEST_PART, batch_size)
    divisors = [part for part in range(batch_size, smallest - 1, -1) if batch_size % part == 0]
    fitting = [part for part in divisors if part <= room] or divisors[-1:]
    return min(fitting, key=lambda part: int((-(-sizes // part)).sum()) * (part + overhead))


def longest_lane(steps: np.ndarray, lanes: int) -> int:
    """The number of steps that `lanes.pack` leaves to the longest lane."""
    loads = [0] * lanes
    for length in sorted(steps.tolist(), reverse=True):
        heapq.heapreplace(loads, loads[0] + length)
    return max(loads)


def choose_lanes(
    steps: np.ndarray,
    clients_per_round: int,
    devices: int,
    part_size: int,
    effort: Effort,
    platform: str,
    most_lanes: int = MOST_LANES,
) -> int:
    """How many lanes a device gets where clients have so many steps [clients] of part_size examples.

    Enough lanes for a step to be worth starting, but no more than stay busy: a round lasts as long as its longest
    client, and lanes that have come to their end before only keep the device warm.
    """
    # Backwards takes twice what forwards does.
    step = step_of(platform)
    wanted = np.ceil(step.operations / max(3 * part_size * effort.operations, 1.0))
    room = step.traffic / max(part_size * effort.traffic, 1.0)
    most = max(1, int(min(wanted, room, most_lanes, -(-clients_per_round // devices))))
    rng = np.random.default_rng(0)
    cohorts = [rng.choice(steps, clients_per_round, replace=False) for _ in range(COHORTS)]

    def busy(lanes: int) -> float:
        """The share of a device's time, over some cohorts."""
        spent = sum(devices * lanes * longest_lane(cohort, devices * lanes) for cohort in cohorts)
        return sum(int(cohort.sum()) for cohort in cohorts) / spent

    shares = {lanes: busy(lanes) for lanes in range(most, 0, -1)}
    return next(lanes for lanes, share in shares.items() if share >= BUSY_ENOUGH * max(shares.values()))


class Course(NamedTuple):
    """How a round's lanes run."""

    steps: int  # of the longest lane, which all others wait for
    changes: int  # of these steps, those in which a client comes to its end, on the device that has most of them
    computed: int  # steps of all lanes, those that wait for another of their device included


def course(steps: np.ndarray, lane: np.ndarray, lanes: int) -> Course:
    """That of clients of so many steps [K] on these lanes [K], of which a device has `lanes`; longest client first."""
    load: dict[int, int] = {}
    ends: dict[int, set[int]] = {}  # by device
    for client in np.argsort(-steps, kind="stable").tolist():
        if steps[client]:  # one without steps goes nowhere
            place = int(lane[client])
            load[place] = load.get(place, 0) + int(steps[client])
            ends.setdefault(place // lanes, set()).add(load[place])
    computed = sum(lanes * max(on_device) for on_device in ends.values())
    return Course(max(load.values()), max(map(len, ends.values())), computed)


def most_places(examples_by_device: Callable[[jax.Array], jax.Array], rounds: int) -> int:
    """The most examples that a device takes in any round of a run, at least one; [R] rounds -> [R, devices]: so many.

    Cohorts follow from the seed, so that this is known beforehand, and no more room is made than is needed.
    """
    counted = jax.jit(examples_by_device)
    starts = range(0, rounds, ROUNDS_AT_A_TIME)
    blocks = (jnp.minimum(start + jnp.arange(ROUNDS_AT_A_TIME), rounds - 1) for start in starts)
    return max(1, *(int(counted(block).max()) for block in blocks))
