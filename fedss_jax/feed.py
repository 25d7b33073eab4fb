"""Brings stored examples to the devices: all of them once, or each round's own while the round before computes.

`data.residency` says where the training examples stay:
  device   all on every device; a round picks its own, and the host has nothing to do
  host     in main memory; a thread gathers the next rounds' examples and sends them ahead
  disk     the same, read from where the data set keeps them, such as a memory-mapped file
  auto     the first of these that has room
"""

from __future__ import annotations

import abc
import concurrent.futures
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from fedss_jax import chips, hosts, parallel
from fedss_jax.data.send import Blanks, send
from fedss_jax.round import Round
from fedss_jax.types import Clients, Images, Resident, Stored, Streamed

Inputs = tuple[np.ndarray, Clients, jax.Array]  # labels, population, root key: what a round takes besides

DEVICE_SHARE, HOST_SHARE = 0.25, 0.5  # of the free memory, that `auto` gives to training examples
AHEAD = 2  # rounds that are gathered before they are asked for


def choose(residency: str, images: Images, mesh: Mesh) -> str:
    """`auto` resolved."""
    if residency != "auto":
        return residency
    size = size_in_bytes(images)
    if size <= DEVICE_SHARE * memory_of(mesh):
        return "device"
    return "host" if size <= HOST_SHARE * hosts.least(host_memory()) else "disk"


def size_in_bytes(images: Images) -> int:
    return int(np.prod(images.shape, dtype=np.int64)) * images.dtype.itemsize


def host_memory() -> int:
    """Bytes that this machine can give, the page cache counted in; all that it has, where it does not say."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return 1024 * int(value.split()[0])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def device_memory(device: jax.Device) -> int:
    """Bytes that are free on a device. CPU devices do not say: they share the host's."""
    stats: dict[str, int] = {}
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # of a device that is not here, see `chips.describe`
        stats = device.memory_stats() or {}
    if "bytes_limit" not in stats:
        chip = chips.of(device)
        return int(chip.memory) if chip else host_memory() // jax.local_device_count()
    return stats["bytes_limit"] - stats.get("bytes_in_use", 0)


def memory_of(mesh: Mesh) -> int:
    """Bytes that are free on each device of a mesh."""
    own = next(device for device in mesh.devices.flat if device.process_index == jax.process_index())
    return hosts.least(device_memory(own))


class Feed(contextlib.AbstractContextManager["Feed"]):
    """Stored examples, round by round. Use it in a `with`: its thread ends with that.

    several_rounds: whether what it gives for one round does for those after it as well.
    """

    several_rounds: bool

    @abc.abstractmethod
    def stored(self, round: int) -> Stored:
        """What round `round`, from 0, takes. Ask in ascending order."""


class DeviceFeed(Feed):
    several_rounds = True

    def __init__(self, images: Images, mesh: Mesh):
        self._resident = Resident(parallel.replicate(mesh, images[:]))

    def stored(self, round: int) -> Stored:
        return self._resident

    def __exit__(self, *reason: Any) -> None:
        """There is no thread to end."""


class StreamFeed(Feed):
    several_rounds = False

    def __init__(self, images: Images, rows_of: Callable[[int], np.ndarray], rounds: int, sharding: NamedSharding):
        """rows_of(round): the rows of `images` that a round takes, slot by slot, -1 for padding."""
        self._images, self._rows_of, self._rounds, self._sharding = images, rows_of, rounds, sharding
        self._pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="feed")
        self._coming: dict[int, concurrent.futures.Future[Stored]] = {}
        self._blanks: Blanks = {}

    def _send(self, round: int) -> Stored:
        return Streamed(send(self._images, self._rows_of(round), self._sharding, self._blanks))

    def stored(self, round: int) -> Stored:
        for coming in range(round, min(round + AHEAD + 1, self._rounds)):
            if coming not in self._coming:
                self._coming[coming] = self._pool.submit(self._send, coming)
        return self._coming.pop(round).result()

    def __exit__(self, *reason: Any) -> None:
        self._pool.shutdown(cancel_futures=True)


def abstract(images: Images, residency: str, kind: Round, inputs: Inputs) -> Any:
    """What a feed gives for a round, as shapes and places: to compile with."""
    if residency == "device":
        everywhere = NamedSharding(kind.mesh, parallel.REPLICATED)
        return Resident(jax.ShapeDtypeStruct(images.shape, images.dtype, sharding=everywhere))  # type: ignore[arg-type]
    rows = jax.eval_shape(kind.examples, *inputs, np.int32(0))
    shape, sharding = (*rows.shape, *images.shape[1:]), NamedSharding(kind.mesh, kind.streamed)
    return Streamed(jax.ShapeDtypeStruct(shape, images.dtype, sharding=sharding))  # type: ignore[arg-type]


def make_feed(images: Images, residency: str, kind: Round, rounds: int, inputs: Inputs) -> Feed:
    """residency: as `choose` gives it."""
    if residency == "device":
        return DeviceFeed(images, kind.mesh)
    if residency == "host":
        images = images[:]
    # On a CPU, whatever the mesh is made of: on a busy accelerator the thread would wait for the round before.
    here = jax.local_devices(backend="cpu")[0]
    on_cpu: tuple[jax.Array, Clients, jax.Array] = jax.device_put(inputs, here)

    def rows_of(round: int) -> np.ndarray:
        return np.asarray(kind.examples(*on_cpu, jax.device_put(np.int32(round), here)))

    return StreamFeed(images, rows_of, rounds, NamedSharding(kind.mesh, kind.streamed))
