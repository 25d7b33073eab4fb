"""An encoder's parameters as a file: safetensors or .npz, never pickle. Reads torchvision's MobileNetV3 as well."""

from __future__ import annotations

import errno
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from flax.traverse_util import flatten_dict, unflatten_dict

from fedss_jax.types import Params, UserError

METADATA = {"format": "fedss_jax encoder"}
PICKLES = (".pth", ".pt", ".pkl", ".pickle", ".bin", ".ckpt")
REMEDY = "set model.name and model.options to those it was made with"
DENSE = {"kernel": "weight", "bias": "bias"}  # torchvision's names of what a dense layer has

Arrays = dict[str, np.ndarray]  # by name, such as block_1/project/kernel


def save(path: str | Path, params: Params, about: Mapping[str, str] = MappingProxyType({})) -> None:
    """The file is there whole or not at all. about: what else to say in its header."""
    write(Path(path), flatten_dict(params, sep="/"), {**METADATA, **about})


def write(path: Path, arrays: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    partial = path.with_name(path.name + ".partial")
    try:
        safetensors.numpy.save_file(contiguous, partial, dict(metadata))
    except safetensors.SafetensorError as error:  # which also says in this way that the disk is full
        raise OSError(errno.EIO, str(error)) from None
    umask = os.umask(0)
    os.umask(umask)
    partial.chmod(0o666 & ~umask)  # as other files are; safetensors lets nobody else read its own
    os.replace(partial, path)


def check(path: str | Path) -> None:
    """Refuses a file that `load` cannot read, for any model."""
    read(Path(path))


def load(path: str | Path, params: Params, *, head: bool = True) -> tuple[Params, str]:
    """Parameters like the given ones (their structure and shapes, float32) with the values of a file.

    The head, which is the encoder's last layer, keeps its given values if the file has none or if `head` is False.
    Also returns a line about what is not as in the file, "" if all is.
    """
    path = Path(path)
    expected: Arrays = flatten_dict(params, sep="/")
    stored, notes = read(path), []
    head_layer = find_head(params)
    may_start_at_random = {head_layer}
    if "features.0.0.weight" in stored:
        stored = from_torchvision(path, stored, expected)
        may_start_at_random.add("hidden")
        notes.append("it was trained with BatchNorm, of which GroupNorm takes over the scale and bias")
    if not head:
        stored = {name: array for name, array in stored.items() if top(name) != head_layer}
    at_random = (may_start_at_random & {top(name) for name in expected}) - {top(name) for name in stored}

    loaded: dict[str, Any] = dict(expected)
    for name, array in expected.items():
        if top(name) not in at_random:
            check_fit(path, name, stored.get(name), array.shape, in_head=top(name) == head_layer)
            loaded[name] = jnp.asarray(stored[name])
    if leftover := sorted(stored.keys() - expected.keys()):
        shape = [*stored[leftover[0]].shape]
        raise UserError(f"{path} has {leftover[0]} {shape}, which the model has not; {REMEDY}")
    if at_random:
        layers = "" if at_random == {"head"} else f" ({', '.join(sorted(at_random))})"
        why = f"is not in {path}" if head else "was not to be loaded (init_from_head is False)"
        notes.append(f"the head{layers} {why} and starts at random")
    return unflatten_dict(loaded, sep="/"), "; ".join(notes)


def top(name: str) -> str:
    """The layer that a parameter is in: block_1/project/kernel -> block_1."""
    return name.partition("/")[0]


def find_head(params: Params) -> str:
    """The layer named head, else the last nn.Dense that has no name of its own."""
    unnamed = [layer for layer in params if layer.startswith("Dense_")]
    return "head" if "head" in params else max(unnamed, key=lambda layer: (len(layer), layer), default="")


def check_fit(path: Path, name: str, found: np.ndarray | None, shape: tuple[int, ...], *, in_head: bool) -> None:
    if found is None:
        raise UserError(f"{path} has no {name} {[*shape]}, which the model has; {REMEDY}")
    if found.dtype != np.float32:
        raise UserError(f"{name} in {path} is {found.dtype}; save it as float32")
    if found.shape == shape:
        return
    remedy = REMEDY
    if in_head:
        same_inputs = found.shape[:-1] == shape[:-1]
        dim = f"set model.dim to {found.shape[-1]}" if same_inputs else REMEDY
        remedy = f"{dim}, or --config.init_from_head=False to start the head at random"
    raise UserError(f"{name} is {[*found.shape]} in {path}, but {[*shape]} in the model; {remedy}")


def read(path: Path) -> Arrays:
    """All arrays of a file, floats as float32."""
    if path.suffix in PICKLES:
        raise UserError(
            f"{path} may be a pickle, which can run any code and is not read; convert it where you trust it:"
            f' safetensors.torch.save_file(torch.load("{path.name}"), "{path.stem}.safetensors")'
        )
    if path.suffix not in (".safetensors", ".npz"):
        raise UserError(f"{path} must be a .safetensors or an .npz file; save it as one of them, or correct init_from")
    if not os.path.isfile(path):
        raise UserError(
            f"{path} is not a file; correct init_from, make one with configs/pretrain.py, or start at random with"
            " --config.init_from="
        )
    try:
        if path.suffix == ".npz":
            with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        else:
            arrays = safetensors.numpy.load_file(path)
    except (safetensors.SafetensorError, zipfile.BadZipFile, OSError, EOFError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path} cannot be read ({reason}); copy or make it again") from error
    for name, array in arrays.items():
        if jnp.issubdtype(array.dtype, jnp.floating):
            with np.errstate(over="ignore"):  # a float64 too large for float32: infinite, and told below
                arrays[name] = array.astype(np.float32)
            if not np.isfinite(arrays[name]).all():
                raise UserError(f"{name} in {path} is not finite (NaN or infinite) in float32; take a sound file")
    return arrays


def read_array(path: Path) -> np.ndarray:
    """A .npy file, such as the class matrix that a run leaves."""
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path} cannot be read ({reason}); copy or make it again") from None


def from_torchvision(path: Path, stored: Arrays, expected: Arrays) -> Arrays:
    """torchvision's MobileNetV3 under our names and in our layout.

    BatchNorm's averages and the classifier are dropped, but for the classifier's first layer if it fits `hidden`.
    What has no name here keeps torchvision's.
    """
    if "stem/kernel" not in expected:
        raise UserError(
            f"{path} has torchvision's MobileNetV3, and the model is another;"
            " set model.name to mobilenet_v3_large or mobilenet_v3_small"
        )
    names = torchvision_names(expected)
    converted = {ours: channels_last(ours, stored[theirs]) for ours, theirs in names.items() if theirs in stored}
    if any(converted[name].shape != expected[name].shape for name in converted if top(name) == "hidden"):
        converted = {name: array for name, array in converted.items() if top(name) != "hidden"}
    dropped = ("running_mean", "running_var", "num_batches_tracked")
    rest = {
        name: array
        for name, array in stored.items()
        if not (name in names.values() or name.endswith(dropped) or name.startswith("classifier."))
    }
    return converted | rest


def torchvision_names(expected: Arrays) -> dict[str, str]:
    """Of each of our parameters outside of the head, torchvision's name."""
    blocks = len({top(name) for name in expected if name.startswith("block_")})
    # The parts of a block are numbered, and some blocks lack some.
    parts = {
        number: [
            part
            for part in ("expand", "depthwise", "squeeze", "project")
            if any(name.startswith(f"block_{number}/{part}/") for name in expected)
        ]
        for number in range(1, blocks + 1)
    }
    leaves = {"kernel": "0.weight", "norm/scale": "1.weight", "norm/bias": "1.bias"}
    leaves |= {f"fc{i}/{ours}": f"fc{i}.{theirs}" for i in (1, 2) for ours, theirs in DENSE.items()}
    layers = {"stem": "features.0", "last": f"features.{blocks + 1}"}
    for number, present in parts.items():
        layers |= {f"block_{number}/{part}": f"features.{number}.block.{i}" for i, part in enumerate(present)}
    names = {f"{layer}/{leaf}": f"{layers[layer]}.{leaves[leaf]}" for layer in layers for leaf in leaves}
    names |= {f"hidden/{ours}": f"classifier.0.{theirs}" for ours, theirs in DENSE.items()}
    return {ours: theirs for ours, theirs in names.items() if ours in expected}


def channels_last(name: str, array: np.ndarray) -> np.ndarray:
    """OIHW -> [k * k * I, O], or [k, k, O] for depthwise; OI -> [I, O]; vectors as they are."""
    if array.ndim == 4:
        array = array.transpose(2, 3, 1, 0)
        return array[:, :, 0] if "/depthwise/" in name else array.reshape(-1, array.shape[-1])
    return array.T
