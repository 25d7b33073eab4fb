"""What a run would take on a machine that need not be here: memory, traffic and time, from the compiled round itself.

The round that `train` would run is compiled, by the TPU compiler for a slice that is only described, or for the devices
at hand, and its program is read. Nothing of it runs, and no picture is opened. How often the loop over lanes goes
around follows from cohorts that are drawn as in a run.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import ml_collections
import numpy as np
from jax.sharding import NamedSharding

from fedss_jax import chips, data, dispatch, feed, lanes, models, packing, parallel
from fedss_jax.analysis import cost, hlo
from fedss_jax.analysis.cost import Memory, Traffic
from fedss_jax.config import resolve
from fedss_jax.data import photos
from fedss_jax.metrics import say, write_json
from fedss_jax.parts import check_server, input_shape, source_options
from fedss_jax.report import plan as report
from fedss_jax.round import draw_cohort
from fedss_jax.simulation import Setup, set_up
from fedss_jax.types import MissingData, Streamed, UserError

COHORTS = 32  # that are drawn, from all over the run
# Rounds whose examples are on the devices besides those of the one that runs.
AHEAD = feed.AHEAD + dispatch.IN_FLIGHT - 1


@dataclasses.dataclass(frozen=True)
class Work:
    """What a round does, as a mean over some cohorts."""

    examples: float
    slots: float  # for examples that are computed
    operations: float  # floating-point, forwards and backwards, that the real examples take
    often: dict[str, float]  # how often those parts of the program run whose number follows from the cohort


@dataclasses.dataclass(frozen=True)
class Plan:
    what: str  # the run
    machine: str
    layout: str  # of the run on the machine
    devices: int
    clients_per_round: int
    lanes: int | None  # None: nobody is federated
    part_size: int
    rounds: int
    streamed: float  # bytes of examples that hosts send in a round
    work: Work
    memory: Memory
    traffic: Traffic | None  # None where it does not fit
    chip: chips.Chip | None  # None where it is not in the table
    compile_seconds: float
    remedies: tuple[str, ...]  # settings that would make it smaller
    notes: tuple[str, ...]


def show(
    config: ml_collections.ConfigDict, topology: str, standin: ml_collections.ConfigDict | None, workdir: str | None
) -> None:
    """Prints the plan; the folder, if there is one, gets it as plan.json."""
    made = dataclasses.asdict(plan(config, topology, standin))
    say(f"\n{report.block(made)}")
    if workdir:
        write_json(workdir, "plan.json", made)


def plan(config: ml_collections.ConfigDict, topology: str, standin: ml_collections.ConfigDict | None) -> Plan:
    """For a TPU slice such as v5e:2x4, or for the devices here if that is "".

    standin: a `data` of the same counts, to plan with where the config's own is not on this machine.
    """
    notes = []
    if not topology or not chips.has_compiler():
        how = "--topology=v5e:2x4 plans for a TPU slice" if chips.has_compiler() else chips.INSTALL
        topology, notes = "", [f"planned for the devices here; {how}"]
    mesh = parallel.make_mesh(chips.describe(topology) if topology else None)
    config = resolve(config)
    check_server(config)
    find = partial(data.find, split=config.eval.split, read=photos.outline)
    try:
        source = find(config.data.name, options=source_options(config))
    except MissingData as error:
        if standin is None:
            raise
        reason = str(error).partition(";")[0]
        notes.append(f"the data is not here ({reason}): planned with the stand-in, which has as many of everything")
        own = config.data.to_dict() | {"name": standin.name}
        # What both have, such as the pictures' size. Two sources may mean different things by one name.
        same = {key: own[key] for key, value in standin.items() if key in own and type(own[key]) is type(value)}
        config.data = ml_collections.ConfigDict(standin.to_dict() | same)
        source = find(config.data.name, options=source_options(config))
    setup = set_up(config, source(), mesh)
    if chips.is_part(mesh.devices.flat[0]):
        notes.append("a device here is one core of a chip; on the machine itself JAX makes one device of a chip's two")
    say(f"compiling the round for {mesh.size} x {mesh.devices.flat[0].device_kind} (minutes for a large encoder)")
    return make(setup, topology, notes)


def make(setup: Setup, topology: str, notes: Sequence[str]) -> Plan:
    """topology: what the devices of the setup are called; "" for those here."""
    config, dataset, devices = setup.config, setup.dataset, setup.mesh.devices.flatten().tolist()
    chip, limit = chips.of(devices[0]), float(feed.device_memory(devices[0]))
    work = count_work(setup)
    everywhere = NamedSharding(setup.mesh, parallel.REPLICATED)
    inputs: Any = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=everywhere), setup.inputs)
    state, stored = setup.abstract_state, setup.abstract_stored
    streamed = isinstance(stored, Streamed)
    ahead = AHEAD * cost.share_of(stored.images) if streamed else 0.0
    began = time.perf_counter()
    try:
        compiled: Any = dispatch.compile_rounds(setup.kind, state, stored, inputs, 1)()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error) or "hbm" not in str(error).lower():
            raise UserError(f"the compiler refuses the round: {str(error).splitlines()[0]}") from None
        arguments = {"state": state, "inputs": (stored, *inputs)}
        traffic, memory = None, cost.too_large(str(error), limit, arguments, ahead)
    else:
        program = hlo.read(compiled.as_text())
        memory = cost.read_memory(compiled.memory_analysis(), program, limit, ahead)
        traffic = cost.read_traffic(program, work.often, chip, devices)
    return Plan(
        what=f"{config.method} on {dataset.name} ({dataset.task}): {len(dataset.train):,} images of"
        f" {dataset.num_classes:,} classes at {len(dataset.clients):,} clients, {setup.clients_per_round} a round",
        machine=f"{len(devices)} x {devices[0].device_kind}" + (f" ({topology})" if topology else ""),
        layout=", ".join(describe_layout(setup)),
        devices=len(devices),
        clients_per_round=setup.clients_per_round,
        lanes=setup.packing.lanes if setup.packing else None,
        part_size=setup.training.part_size or setup.training.batch_size,
        rounds=config.rounds,
        streamed=cost.size_of(stored.images) * share_with_examples(setup) if streamed else 0.0,
        work=work,
        memory=memory,
        traffic=traffic,
        chip=chip,
        compile_seconds=time.perf_counter() - began,
        remedies=() if memory.fits else tuple(list_remedies(setup, memory)),
        notes=(*notes, *setup.notes, *unseen_classes(setup)),
    )


def share_with_examples(setup: Setup) -> float:
    """Of the groups of devices that train clients of their own; the others are sent nothing."""
    groups = setup.training.crew.groups(setup.mesh) if setup.packing else 1
    return min(1.0, setup.clients_per_round / groups)


def describe_layout(setup: Setup) -> Iterator[str]:
    training, config, places = setup.training, setup.config, setup.packing
    if places:
        together = training.crew.groups(setup.mesh) < setup.mesh.size
        yield f"lanes: {places.lanes} " + ("for all devices together" if together else "a device")
    yield f"batches of {training.batch_size}" + (f" in parts of {training.part_size}" if training.cuts_batches else "")
    yield config.model.dtype
    yield "W " + ("spread over the devices" if setup.server.rows.layout.sharded else "whole on every device")
    yield "examples " + ("all on every device" if setup.residency == "device" else "streamed")


def unseen_classes(setup: Setup) -> Iterator[str]:
    n, positives = setup.dataset.num_classes, np.asarray(setup.population.positives)
    held = len(np.unique(positives[positives < n]))
    if held < n:
        yield f"of {n:,} classes {held:,} are held by clients; the others are only drawn as negatives"


def count_work(setup: Setup) -> Work:
    training, places = setup.training, setup.packing
    often: dict[str, float] = {}
    if places is None:
        batches = jax.eval_shape(setup.kind.examples, *setup.inputs, np.int32(0))  # [updates, B], with padding
        examples, slots = float(len(batches) * min(training.batch_size, len(setup.dataset.train))), float(batches.size)
    else:
        draw = partial(draw_cohort, training, places, setup.faults, setup.mesh, setup.population, setup.root_key)
        rounds = np.unique(np.linspace(0, setup.config.rounds - 1, COHORTS).astype(np.int32))
        cohorts = jax.tree.map(np.asarray, jax.jit(jax.vmap(draw))(rounds))
        courses = [packing.course(*cohort, places.lanes) for cohort in zip(cohorts.steps, cohorts.queues.lane)]
        steps, changes, computed = np.mean(courses, axis=0).tolist()
        part_size, _ = training.parts_of(setup.population.examples.shape[1])
        examples = training.epochs * float(cohorts.clients.num_examples.sum(axis=1).mean())
        slots = computed * training.crew.padded(part_size)
        often = {lanes.LANES: steps, lanes.CHANGE: changes / max(steps, 1.0)}
    forwards = models.count_effort(setup.model, input_shape(setup.dataset)).operations
    forwards += 2.0 * setup.config.model.dim * count_requested(setup)
    return Work(examples, slots, 3 * forwards * examples, often)  # backwards takes twice what forwards does


def count_requested(setup: Setup) -> int:
    """Classes in a client's softmax, with padding."""
    training = setup.training
    if training.method.requests_all:
        return training.num_classes
    client: Any = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), setup.population)
    request: Any = jax.eval_shape(
        lambda key, client: training.method.request(key, client, training.num_classes), setup.root_key, client
    )
    return request.classes.shape[0]


def list_remedies(setup: Setup, memory: Memory) -> Iterator[str]:
    """Those that apply to this run: to what takes a good part of the memory."""
    config, training, rows = setup.config, setup.training, setup.server.rows.layout
    examples = memory.arguments.get("examples", 0.0) + memory.ahead
    of_rows = memory.arguments.get("rows", 0.0)
    # On a TPU rows of less than 128 numbers are filled up to that, which is not counted where it does not fit.
    filled_up = of_rows * (max(1.0, 128 / config.model.dim) - 1)
    working = memory.needed - sum(memory.arguments.values()) - memory.ahead - filled_up
    if of_rows > memory.limit / 4:
        if rows.sharded:
            yield "more chips: each keeps a smaller share of W"
        elif setup.mesh.size == 1:
            yield "more chips, over which W is spread"
        elif training.method.every_row and not training.method.requests_all:
            yield "--config.fedaws.touched_only=True spreads out a round's classes only, and W over the chips"
        elif config.server.shard_rows == "no":
            yield "--config.server.shard_rows=yes spreads W over the chips"
        if config.model.dim > 128:
            yield f"--config.model.dim={config.model.dim // 2}, which is {config.model.dim} now"
    if examples > memory.limit / 4:
        if setup.residency == "device":
            yield "--config.data.residency=host sends each round's examples only"
        else:
            yield f"more chips, or fewer --config.clients_per_round, {setup.clients_per_round} now, and their examples"
    if working > memory.limit / 4:
        if setup.packing and setup.packing.lanes > 1:
            half = setup.packing.lanes // 2
            yield f"--config.clients_per_step={half}: fewer clients on a chip at a time, {setup.packing.lanes} now"
        size = training.part_size or training.batch_size
        if setup.packing and (smaller := [part for part in range(1, size) if training.batch_size % part == 0]):
            yield f"--config.client.part_size={smaller[-1]}: fewer examples of a batch at a time, {size} now"
        if "remat" in config.model.options and not config.model.options.remat:
            yield "--config.model.options.remat=True works activations out again, for less memory and more time"
        if config.model.dtype == "float32":
            yield "--config.model.dtype=bfloat16"
        if setup.packing is None and training.batch_size > setup.mesh.size:
            yield "more chips: each computes a smaller share of a batch"
