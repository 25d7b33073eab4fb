"""Every check of a config, in one place. A message names the value, the limit and the remedy.

`resolve` looks at the config alone, `check_population` at the config and the data together.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import ml_collections
import numpy as np

from fedss_jax.methods import METHODS, Method
from fedss_jax.server import ROW_WEIGHTINGS
from fedss_jax.types import Clients, UserError

AT_LEAST: dict[str, float] = {
    "rounds": 1,
    "clients_per_round": 0,
    "clients_per_step": 0,
    "rounds_per_dispatch": 0,
    "num_negatives": -1,
    "seed": 0,
    "eval.every": 1,
    "eval.batch_size": 1,
    "eval.max_train_examples": 1,
    "client.batch_size": 1,
    "client.epochs": 1,
    "client.part_size": 0,
    "model.dim": 1,
    "fedaws.weight": 0,
    "fedaws.neighbours": 0,
    "centralized.updates_per_round": 0,
    "centralized.warmup": 0,
}
ABOVE_ZERO = ("client.learning_rate", "server.learning_rate", "model.logit_scale", "model.class_norm")
ONE_OF = {
    "method": tuple(METHODS),
    "server.row_weighting": ROW_WEIGHTINGS,
    "server.shard_rows": ("auto", "yes", "no"),
    "data.residency": ("auto", "device", "host", "disk"),
}


def look_up(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = config[name]
    return config


def resolve(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """A checked copy, with the rates that its method was tuned to where none are set."""
    config = config.copy_and_resolve_references()
    if not config.data.get("name"):
        raise UserError("data.name is not set; run a config of a data set, such as configs/glyphs.py")
    for path, known in ONE_OF.items():
        if (value := look_up(config, path)) not in known:
            raise UserError(f"{path} is {value!r}, which does not exist; choose one of {', '.join(known)}")
    tuned = config.tuned.get(config.method, {})
    for section, key in (("client", "learning_rate"), ("model", "class_norm")):
        if config[section][key] is None:
            if key not in tuned:
                raise UserError(f"{section}.{key} is not set, and none was tuned for {config.method}; set it")
            config[section][key] = tuned[key]
    for path, least in AT_LEAST.items():
        if (value := look_up(config, path)) < least:
            raise UserError(f"{path} is {value}; it must be at least {least}")
    for path in ABOVE_ZERO:
        if not (value := look_up(config, path)) > 0:
            raise UserError(f"{path} is {value}; it must be above 0")
    batch_size, part_size = config.client.batch_size, config.client.part_size
    if part_size and batch_size % part_size:
        raise UserError(
            f"client.part_size is {part_size}, which does not divide client.batch_size, {batch_size}; 0 chooses one"
        )
    if config.seed >= 2**32:
        raise UserError(f"seed is {config.seed}; it must be below 2**32, as JAX's keys have 32 bits of it")
    with config.unlocked():
        del config.tuned  # of no further meaning to this run
    return config


def read_config(folder: Path) -> ml_collections.ConfigDict:
    """The resolved config of a run, from its folder."""
    path = folder / "config.json"
    try:
        return ml_collections.ConfigDict(json.loads(path.read_text(), object_hook=_with_tuples))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); name the folder of a run") from None


def _with_tuples(section: dict[str, Any]) -> dict[str, Any]:
    """JSON has only lists; in configs, these are tuples."""

    def frozen(value: Any) -> Any:
        return tuple(map(frozen, value)) if isinstance(value, list) else value

    return {key: frozen(value) for key, value in section.items()}


def fit_to_population(config: ml_collections.ConfigDict, clients: Clients, n: int) -> ml_collections.ConfigDict:
    """A copy that says how many clients and negatives there are, where the config leaves that to the data."""
    fitted = config.copy_and_resolve_references()
    if config.clients_per_round == 0:
        fitted.clients_per_round = min(10, len(clients.client_id))
    if config.num_negatives == -1:
        fitted.num_negatives = min(20, n - int(clients.num_positives.max()))
    return fitted


def check_population(config: ml_collections.ConfigDict, method: Method, clients: Clients, n: int) -> None:
    """Whether the data can carry the config: enough clients, enough classes to draw negatives from."""
    population = len(clients.client_id)
    if config.clients_per_round > population:
        raise UserError(
            f"clients_per_round is {config.clients_per_round}, but the data has {population} clients; lower it"
        )
    positives = np.asarray(clients.num_positives, np.int64)
    drawn = np.broadcast_to(method.num_negatives(positives), positives.shape)
    client = int(np.argmax(drawn - (n - positives)))
    if drawn[client] > n - positives[client]:
        raise UserError(
            f"client {client} would draw {drawn[client]} negatives, but of {n} classes {positives[client]} are its own"
            f" and {n - positives[client]} remain; lower num_negatives"
        )


def parse_options(text: str) -> dict[str, Any]:
    """'b1=0.9,nesterov=True' -> {'b1': 0.9, 'nesterov': True}."""
    options = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals or not name.strip().isidentifier():
            raise UserError(f"cannot read {part!r}: write options as name=value,name=value")
        try:
            options[name.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            options[name.strip()] = value.strip()
    return options
