"""The device mesh, putting host arrays on it, and how programs are compiled for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from fedss_jax.types import Resident, Stored

CLIENTS = "clients"  # the mesh's one axis: each device computes its share of a cohort
REPLICATED = PartitionSpec()
BY_CLIENT = PartitionSpec(CLIENTS)


def make_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    devices = jax.devices() if devices is None else devices
    return Mesh(np.asarray(devices), (CLIENTS,), axis_types=(AxisType.Auto,))


def compiler_options(mesh: Mesh) -> dict[str, str]:
    """For programs with encoders in them.

    On CPUs XLA has two libraries, and gives to the newer one also convolutions, at which the older is twice as fast.
    Products and sums are faster in the newer.
    """
    if mesh.devices.flat[0].platform != "cpu":
        return {}
    newer = [f"LIBRARY_FUSION_TYPE_{kind}" for kind in ("DOT", "INDIVIDUAL_DOT", "REDUCE")]
    return {"xla_cpu_experimental_ynn_fusion_type": ",".join(newer)}


def put(tree: Any, sharding: NamedSharding) -> Any:
    """On the devices. Of several processes each gives what it has itself, which must be the same everywhere."""

    def one(array: Any) -> jax.Array:
        if isinstance(array, jax.Array) and jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(one(jax.random.key_data(array)))
        if isinstance(array, jax.Array) and not array.is_fully_addressable:
            return jax.device_put(array, sharding)
        own = np.asarray(array)
        # Not by device_put, which first compares all of it between the processes.
        return jax.make_array_from_callback(own.shape, sharding, lambda index: own[index])

    return jax.device_put(tree, sharding) if sharding.is_fully_addressable else jax.tree.map(one, tree)


def replicate(mesh: Mesh, tree: Any) -> Any:
    """On every device."""
    return put(tree, NamedSharding(mesh, REPLICATED))


def spec(stored: Stored) -> PartitionSpec:
    """Where stored examples are inside a round: all on every device, or each client's with the client."""
    return REPLICATED if isinstance(stored, Resident) else BY_CLIENT


def varying(tree: Any) -> Any:
    """Marks replicated arrays as each device's own, inside shard_map.

    Without it, `jax.grad` with respect to a replicated array sums over all devices: local SGD would then be right
    on one device and silently wrong on several.
    """
    return jax.tree.map(lambda a: jax.lax.pcast(a, CLIENTS, to="varying"), tree)


def summed(function: Callable[..., Any], mesh: Mesh, in_specs: tuple[Any, ...]) -> Callable[..., Any]:
    """The function run on every device, on its share of the arguments, and its results summed over all devices.

    Not by `psum`: on one device that copies the result, which for a large class matrix takes as long as the round. A
    sum over the devices' own axis costs nothing there, and on several XLA makes the same all-reduce of it.
    """

    def share(*arguments: Any) -> Any:
        return jax.tree.map(lambda a: a[None], function(*arguments))

    everywhere = jax.shard_map(share, mesh=mesh, in_specs=in_specs, out_specs=BY_CLIENT)

    def total(a: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(jnp.sum(a, axis=0), NamedSharding(mesh, REPLICATED))

    return lambda *arguments: jax.tree.map(total, everywhere(*arguments))


def of_first(mesh: Mesh, tree: Any) -> Any:
    """Of arrays [devices, ...] the first device's entry, on all of them."""
    everywhere = NamedSharding(mesh, REPLICATED)
    return jax.tree.map(lambda a: jax.lax.with_sharding_constraint(a[0], everywhere), tree)


def padded(size: int, mesh: Mesh) -> int:
    """The next multiple of the number of devices."""
    return -(-size // mesh.size) * mesh.size
