"""Every check of a config, in one place. A message names the value, the limit and the remedy.

`resolve` looks at the config alone, `check_population` at the config and the data together.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_collections
import numpy as np

from fedss_jax.faults import Faults
from fedss_jax.methods import METHODS, Method
from fedss_jax.server import ROW_WEIGHTINGS
from fedss_jax.types import Clients, UserError

AT_LEAST: dict[str, float] = {
    "rounds": 1,
    "clients_per_round": 0,
    "clients_per_step": 0,
    "rounds_per_dispatch": 0,
    "over_selection": 0,
    "deadline": 0,
    "server.clip_norm": 0,
    "faults.spread": 0,
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
    "checkpoint.every": 0,
    "checkpoint.keep": 1,
}
AT_MOST: dict[str, int] = {
    "rounds": 10**7,  # some numbers of every round are kept
    "rounds_per_dispatch": 10**4,
    "client.batch_size": 2**20,
    "client.epochs": 10**4,
    "centralized.updates_per_round": 10**6,
}
BELOW = 2**32  # every whole number: JAX's keys have 32 bits of a seed, and nothing else comes near
LARGEST, SMALLEST = (float(limit) for limit in (np.finfo(np.float32).max, np.finfo(np.float32).tiny))
ABOVE_ZERO = ("client.learning_rate", "server.learning_rate", "model.logit_scale", "model.class_norm")
SHARES = ("server.clip_quantile", "faults.dropout", "faults.nan", "faults.scaled")
ONE_OF = {
    "method": tuple(METHODS),
    "server.row_weighting": ROW_WEIGHTINGS,
    "server.shard_rows": ("auto", "yes", "no"),
    "data.residency": ("auto", "device", "host", "disk"),
    "checkpoint.on_error": ("continue", "stop"),
}
NUMBERS = (
    *ABOVE_ZERO,
    *SHARES,
    "over_selection",
    "deadline",
    "server.clip_norm",
    "faults.spread",
    "faults.scale",
    "fedaws.weight",
    "fedaws.margin",
)
YES_OR_NO = ("correct_logits", "extra_negatives", "fedaws.touched_only", "centralized.cosine", "init_from_head")
TEXTS = (
    *ONE_OF,
    *(f"{section}.{key}" for section in ("server", "centralized") for key in ("optimizer", "options")),
    "model.name",
    "model.dtype",
    "init_from",
    "wandb",
    "data.name",
    "eval.split",
)
KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(AT_LEAST, (int,)),
    **dict.fromkeys(NUMBERS, (float, int)),
    **dict.fromkeys(YES_OR_NO, (bool,)),
    **dict.fromkeys(TEXTS, (str,)),
    "model.options": (ml_collections.ConfigDict,),
}
CALLED = {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}


def look_up(config: Any, path: str) -> Any:
    for name in filter(None, path.split(".")):
        if not isinstance(config, (Mapping, ml_collections.ConfigDict)) or name not in config:
            raise UserError(f"the config has no {path}; set it, or begin with configs/common.py, which has all keys")
        config = config[name]
    return config


def _check_kinds(config: ml_collections.ConfigDict) -> None:
    """Whether all keys are there. Whoever replaces a whole section may have left one out, or changed its type."""
    tuned = ("client.learning_rate", "model.class_norm")  # unset until they are resolved
    for path, kinds in KINDS.items():
        value = look_up(config, path)
        is_kind = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
        if not is_kind and not (value is None and path in tuned):
            wanted = CALLED.get(kinds[0], "a section of keys, such as {}")
            raise UserError(f"{path} is {_shown(value)}; it must be {wanted}")


def _shown(value: Any) -> str:
    text = repr(value.to_dict() if isinstance(value, ml_collections.ConfigDict) else value)
    return text if len(text) <= 80 else text[:77] + "..."


def _check_values(path: str, value: Any) -> None:
    """What no key may be, those of the data and of the encoder's options included."""
    if isinstance(value, (Mapping, ml_collections.ConfigDict)):
        for key, below in value.items():
            _check_values(f"{path}.{key}" if path else str(key), below)
    elif isinstance(value, (list, tuple)):
        for below in value:
            _check_values(path, below)
    elif isinstance(value, int) and abs(value) >= BELOW:
        raise UserError(f"{path} is {_shown(value)}; it must be below 2**32")
    elif isinstance(value, float) and not abs(value) <= LARGEST:  # so that NaN is refused as well
        raise UserError(f"{path} is {value}; it must be a finite number, at most {LARGEST:.1e}")
    elif isinstance(value, str) and ("\0" in value or len(f"{value}.".splitlines()) > 1 or not _is_utf8(value)):
        raise UserError(f"{path} is {_shown(value)}; it must be one line of UTF-8 text")


def _is_utf8(text: str) -> bool:
    try:
        return bool(text.encode()) or not text
    except UnicodeEncodeError:
        return False


def resolve(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """A checked copy, with the rates that its method was tuned to where none are set."""
    config = config.copy_and_resolve_references()
    if not look_up(config, "data").get("name"):
        raise UserError("data.name is not set; run a config of a data set, such as configs/glyphs.py")
    _check_kinds(config)
    _check_values("", config)
    for path, known in ONE_OF.items():
        if (value := look_up(config, path)) not in known:
            raise UserError(f"{path} is {value!r}, which does not exist; choose one of {', '.join(known)}")
    tuned = config.get("tuned") or {}  # one that is resolved already has none
    if not isinstance(tuned, (Mapping, ml_collections.ConfigDict)):
        raise UserError(f"tuned is {_shown(tuned)}; it must be a section of keys, such as {{}}")
    tuned = tuned.get(config.method)
    for section, key in (("client", "learning_rate"), ("model", "class_norm")):
        if config[section][key] is None:
            rate = tuned.get(key) if isinstance(tuned, ml_collections.ConfigDict) else None
            if not isinstance(rate, float):
                raise UserError(f"{section}.{key} is not set, and none was tuned for {config.method}; set it")
            config[section][key] = rate
    for path, least in AT_LEAST.items():
        if (value := look_up(config, path)) < least:
            raise UserError(f"{path} is {value}; it must be at least {least}")
    for path, most in AT_MOST.items():
        if (value := look_up(config, path)) > most:
            raise UserError(f"{path} is {value}; it must be at most {most}")
    for path in ABOVE_ZERO:
        if not (value := look_up(config, path)) >= SMALLEST:
            raise UserError(f"{path} is {value}; it must be above 0, at least {SMALLEST:.1e}")
    for path in SHARES:
        if not 0 <= (value := look_up(config, path)) <= 1:
            raise UserError(f"{path} is {value}; it is a share, from 0 to 1")
    if (spoilt := config.faults.nan + config.faults.scaled) > 1:
        raise UserError(
            f"faults.nan and faults.scaled are {spoilt:g} together; a client sends one or the other: lower one"
        )
    batch_size, part_size = config.client.batch_size, config.client.part_size
    if part_size and batch_size % part_size:
        raise UserError(
            f"client.part_size is {part_size}, which does not divide client.batch_size, {batch_size}; 0 chooses one"
        )
    if "tuned" in config:
        with config.unlocked():
            del config.tuned  # of no further meaning to this run
    return config


NO_RESULT = ("eval.every", "checkpoint", "wandb")  # keys, or sections, that no round's result depends on


def may_change(config: ml_collections.ConfigDict) -> tuple[str, ...]:
    """Keys, or sections, that a run can go on with other values of, as no round's result depends on them."""
    decays = config.method == "centralized" and config.centralized.cosine  # over all of its rounds
    return (*NO_RESULT, *(() if decays else ("rounds",)))


def read_config(folder: Path) -> ml_collections.ConfigDict:
    """The resolved config of a run, from its folder."""
    path = folder / "config.json"
    try:
        return ml_collections.ConfigDict(json.loads(path.read_text(), object_hook=_with_tuples))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); name the folder of a run with --workdir") from None


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
    fitted.clients_per_step = min(config.clients_per_step, fitted.clients_per_round)
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
    chosen = Faults(over_selection=config.over_selection).chosen(config.clients_per_round)
    if chosen > population:
        raise UserError(
            f"over_selection is {config.over_selection}, which chooses {chosen} clients a round, but the data has"
            f" {population}; lower it or clients_per_round"
        )
    positives = np.asarray(clients.num_positives, np.int64)
    drawn = np.broadcast_to(method.num_negatives(positives), positives.shape)
    client = int(np.argmax(drawn - (n - positives)))
    if drawn[client] > n - positives[client]:
        raise UserError(
            f"client {client} would draw {drawn[client]} negatives, but of {n} classes {positives[client]} are its own"
            f" and {n - positives[client]} remain; lower num_negatives"
        )


def check_room(config: ml_collections.ConfigDict, needs: Mapping[str, float], room: float) -> None:
    """Whether what keys ask for can be in a device's memory: needs and room in bytes, needs by the key."""
    for path, size in needs.items():
        if size > room:
            raise UserError(
                f"{path} is {_shown(look_up(config, path))}, which takes at least {size / 1e9:,.1f} GB on a device, but"
                f" {room / 1e9:,.1f} GB are free; lower it"
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
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            options[name.strip()] = value.strip()
    return options
