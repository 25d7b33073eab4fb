"""What is known of TPU chips, and machines of them that are not here: the TPU compiler needs no TPU."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
from collections.abc import Sequence

import jax
from jax.experimental import topologies

from fedss_jax.types import UserError

EXAMPLES = "v5e:2x4 (a v5e-8), v5e:16x16 (a v5e-256), v6e:2x4, v4:2x2x1 or v5p:2x2x1"
INSTALL = "the TPU compiler runs on any Linux machine: pip install '.[tpu]'"


@dataclasses.dataclass(frozen=True)
class Chip:
    """What one device has; a chip, or one of its cores where JAX counts those."""

    memory: float  # bytes that the compiler gives to a program
    clock: float  # cycles a second
    bandwidth: float  # of its memory, bytes a second
    links: float  # to other chips, all of them together and one way, bytes a second
    peak: float  # floating-point operations a second, in bfloat16


# Bandwidths and peaks are from Google's pages on the chips' architecture (cloud.google.com/tpu/docs). Memory is what
# the compiler names when a program is too large: a little less than a chip has. v6e's clock is not published; with this
# one the compiler's estimates come as near to the memory's bandwidth as those for the others do.
CHIPS = {
    "TPU v4": Chip(memory=30.5 * 2**30, clock=1.05e9, bandwidth=1228e9, links=300e9, peak=275e12),
    "TPU v5 lite": Chip(memory=15.75 * 2**30, clock=1.5e9, bandwidth=819e9, links=200e9, peak=197e12),
    "TPU v5": Chip(memory=95.74 * 2**30, clock=1.75e9, bandwidth=2765e9, links=600e9, peak=459e12),
    "TPU v6 lite": Chip(memory=31.25 * 2**30, clock=1.75e9, bandwidth=1638e9, links=400e9, peak=918e12),
}
CORES = {"TPU v4": 2, "TPU v5": 2}  # of a chip; JAX makes one device of both, or two
SECONDS_PER_HOP = 1e-6  # that a message takes from a chip to its neighbour, about


def of(device: jax.Device) -> Chip | None:
    """None for what is no TPU, or one that is not in the table."""
    chip, kind = CHIPS.get(device.device_kind), device.device_kind
    if chip is None:
        return None
    share = getattr(device, "num_cores", 1) / CORES.get(kind, 1)
    return Chip(share * chip.memory, chip.clock, share * chip.bandwidth, share * chip.links, share * chip.peak)


def is_part(device: jax.Device) -> bool:
    """Whether it is a core of a chip that has two."""
    return getattr(device, "num_cores", 1) < CORES.get(device.device_kind, 1)


def hops(devices: Sequence[jax.Device]) -> int:
    """From a chip to the farthest one, where messages go both ways around a torus."""
    extents = zip(*(getattr(device, "coords", (0,)) for device in devices), strict=True)
    return sum((max(extent) + 1) // 2 for extent in extents)


def keep_quiet() -> None:
    """Where there is no TPU, keeps libtpu from complaining about that. To be called before JAX looks for devices.

    libtpu is also installed where it only compiles. As soon as JAX is imported, it sets TPU_SKIP_MDS_QUERY if it sees
    no TPU on this machine's bus; what libtpu then misses is said here. A TPU's host is left as it is.
    """
    if os.environ.get("TPU_SKIP_MDS_QUERY") == "1":
        os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5e-4")
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")


def has_compiler() -> bool:
    return importlib.util.find_spec("libtpu") is not None


def describe(topology: str) -> list[jax.Device]:
    """The devices of a TPU slice, such as v5e:2x4. Programs can be compiled for them, but nothing runs there.

    What else the process does, it does on this machine's CPU, unless JAX was in use before.
    """
    keep_quiet()
    jax.config.update("jax_platforms", "cpu")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # a lock keeps two processes off one TPU; here is none
    _, _, extents = topology.partition(":")
    numbers = [int(extent) for extent in extents.split("x") if extent.isdecimal()]
    one_chip = {"chips_per_host_bounds": [1, 1, 1]} if math.prod(numbers) == 1 else {}  # else a host has four
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=topology, **one_chip).devices
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).splitlines()[0].partition(": ")[2].partition(" and does not match regex")[0]
        raise UserError(f"topology is {topology!r}: {reason}; write one such as {EXAMPLES}") from None
