"""What weights of their own cost K clients on a TPU v5e, by the estimates of the TPU compiler. It needs no TPU.

    pip install '.[tpu]'
    python -m benchmarks.tpu [--models small ...] [--dtypes bfloat16 ...] [--forms tpu ...] [--json FILE]

One local step (forwards, backwards, SGD) is compiled twice: for K clients of B images each, every one with an encoder
and class rows of its own, and for one model on the same K * B images. The price is the ratio of their cycles. The
second is compiled in the forms that suit one model, and each form of the first is compared with the fastest of those.

Cycles are the compiler's own estimates, summed; nothing was timed. Operations that it gives none for are counted by
the bytes they move. A large network takes minutes to compile, so a whole table takes an hour or more.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedss_jax import chips, losses, models
from fedss_jax.analysis import hlo
from fedss_jax.models import layers, shifted
from fedss_jax.models.layers import Form
from fedss_jax.types import Theta

ROWS, DIM, SCALE, RATE = 100, 64, 20.0, 0.1
TARGET = 1.5
# Where an operation of the compiled program comes from, by the name that JAX gave it. The first that fits.
KINDS = {
    "norm": r"norm|GroupNorm",
    "stem": r"stem|Conv_0",
    "depthwise": r"depthwise",
    "dense": r"Conv_1",
    "pointwise": r"expand|project|last|squeeze|head|Dense_0",
}
# Ways to write convolutions, besides those of the project.
FORMS = {
    "native": Form(layers.native_dense, layers.native_depthwise, layers.product_of_matrices),
    "native, images": Form(layers.native_dense, layers.native_depthwise, layers.product),
    "patches": Form(layers.patches_product, layers.native_depthwise, layers.product),
    "shifted": Form(layers.native_dense, shifted.depthwise, layers.product),
}
SHARED_FORMS = ("native", "native, images")


class Case(NamedTuple):
    model: str
    image_shape: tuple[int, int, int]
    clients: int
    batch: int


CASES = (
    Case("small", (32, 32, 1), 32, 32),
    Case("mobilenet_v3_large", (224, 224, 3), 8, 8),
    Case("mobilenet_v3_large", (224, 224, 3), 8, 32),
)


@dataclasses.dataclass(frozen=True)
class Cost:
    cycles: float
    unestimated: float  # of these cycles: of operations that the compiler gives no estimate for, by the bytes they move
    by_kind: dict[str, float]
    flops: float
    gigabytes: float  # of memory, at the most
    milliseconds: float
    compile_seconds: float


def step(model: Any, theta: Theta, images: jax.Array, labels: jax.Array) -> tuple[Theta, jax.Array]:
    """One client's: images [B, H, W, C], labels [B] -> its sub-model after the step, and the loss before it."""

    def loss(theta: Theta) -> jax.Array:
        logits = losses.cosine_logits(model.embed(theta.encoder, images), theta.class_matrix, SCALE)
        is_target = labels[:, None] == jnp.arange(ROWS)
        return jnp.mean(losses.sampled_softmax(logits, is_target, jnp.ones(ROWS, bool), jnp.zeros(ROWS)))

    value, gradient = jax.value_and_grad(loss)(theta)
    return jax.tree.map(lambda p, g: p - RATE * g, theta, gradient), value


known: dict[str, Cost] = {}  # by what is compiled: two forms can be the same for a model


def compiled(function: Callable[..., Any], arguments: Any, device: Any) -> Cost:
    """The first of the arguments, trees of shapes, is given away as a training loop does."""
    sharding = NamedSharding(Mesh([device], ("clients",)), PartitionSpec())
    placed = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding), arguments)
    began = time.perf_counter()
    lowered = jax.jit(function, donate_argnums=0).lower(*placed)
    text = lowered.as_text()
    if text in known:
        return known[text]
    program = lowered.compile()
    seconds = time.perf_counter() - began
    memory: Any = program.memory_analysis()
    size = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    chip = chips.CHIPS[device.device_kind]
    estimated, moved = count_cycles(program.as_text() or "", chip)
    known[text] = Cost(
        cycles=estimated.total() + moved.total(),
        unestimated=moved.total(),
        by_kind=dict(estimated + moved),
        flops=float((program.cost_analysis() or {}).get("flops", 0.0)),
        gigabytes=(size - memory.alias_size_in_bytes) / 1e9,
        milliseconds=1e3 * (estimated + moved).total() / chip.clock,
        compile_seconds=seconds,
    )
    return known[text]


def measure(case: Case, dtype: str, form: str, device: Any, shared: bool) -> Cost:
    options = {"convolution": form}
    model = models.create(case.model, image_shape=case.image_shape, dim=DIM, dtype=dtype, options=options)
    theta: Any = Theta(jax.eval_shape(model.init, jax.random.key(0)), jnp.zeros((ROWS, DIM)))
    outer = () if shared else (case.clients,)
    theta = jax.tree.map(lambda a: jax.ShapeDtypeStruct((*outer, *a.shape), a.dtype), theta)
    examples = case.clients * case.batch
    # The same for both, as they would come out of a store: it is not for a client's images that they are laid out.
    images = jax.ShapeDtypeStruct((examples, *case.image_shape), jnp.float32)
    labels = jax.ShapeDtypeStruct((examples,), jnp.int32)

    def one(theta: Theta, images: jax.Array, labels: jax.Array) -> Any:
        return step(model, theta, images, labels)

    def all_clients(theta: Theta, *batch: jax.Array) -> Any:
        return jax.vmap(one)(theta, *(a.reshape(case.clients, case.batch, *a.shape[1:]) for a in batch))

    return compiled(one if shared else all_clients, (theta, images, labels), device)


def kind_of(instruction: hlo.Instruction) -> str:
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, instruction.op_name)), "rest")


def count_cycles(text: str, chip: chips.Chip) -> tuple[Counter[str], Counter[str]]:
    """Cycles of a compiled program by kind of layer: those that the compiler estimates, and those of other moves."""
    program = hlo.read(text)
    estimated: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    for times, instruction, function in hlo.executed(program, {}):
        if instruction.cycles is not None:
            estimated[kind_of(instruction)] += round(times * instruction.cycles)
        elif not hlo.FREE.fullmatch(instruction.opcode):
            size = hlo.moved(program, instruction, function)
            moved[kind_of(instruction)] += round(times * size / chip.bandwidth * chip.clock)
    return estimated, moved


HEADER = (
    f"{'model':<20} {'K':>3} {'B':>3} {'dtype':<9} {'form':<17} {'Mcycles':>9} {'ms':>8} {'GB':>6} {'price':>6}"
    f"  where the cycles go"
)


def line_of(case: Case, dtype: str, form: str, cost: Cost, price: float | None) -> str:
    kinds = sorted(cost.by_kind.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{kind} {cycles / cost.cycles:.0%}" for kind, cycles in kinds if cycles >= 0.01 * cost.cycles)
    ratio = "" if price is None else f"{price:.2f}"
    return (
        f"{case.model:<20} {case.clients:>3} {case.batch:>3} {dtype:<9} {form:<17} {cost.cycles / 1e6:>9.2f}"
        f" {cost.milliseconds:>8.2f} {cost.gigabytes:>6.2f} {ratio:>6}  {shares}"
    )


def compare(cases: Iterable[Case], dtypes: list[str], forms: list[str], device: Any) -> Iterator[dict[str, Any]]:
    """Prints a line as soon as it is known: a large network takes minutes to compile."""
    print(HEADER, flush=True)
    for case in cases:
        for dtype in dtypes:
            fastest = math.inf
            for name in SHARED_FORMS:
                cost = measure(case, dtype, name, device, shared=True)
                fastest = min(fastest, cost.cycles)
                print(line_of(case, dtype, f"{name}, one model", cost, None), flush=True)
                yield row(case, dtype, name, cost, shared=True, price=None)
            for name in forms:
                cost = measure(case, dtype, name, device, shared=False)
                price = cost.cycles / fastest
                print(line_of(case, dtype, name, cost, price), flush=True)
                yield row(case, dtype, name, cost, shared=False, price=price)


def row(case: Case, dtype: str, form: str, cost: Cost, **others: Any) -> dict[str, Any]:
    return case._asdict() | {"dtype": dtype, "form": form} | others | dataclasses.asdict(cost)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["small", "mobilenet_v3_large"])
    parser.add_argument("--batches", nargs="+", type=int, default=[8, 32])
    parser.add_argument("--dtypes", nargs="+", default=[*models.DTYPES], choices=[*models.DTYPES])
    parser.add_argument("--forms", nargs="+", default=["tpu", *FORMS], choices=["tpu", *FORMS])
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    flags = parser.parse_args()
    if not chips.has_compiler():
        print(chips.INSTALL)
        return
    device = chips.describe("v5e:1x1")[0]
    cases = [case for case in CASES if case.model in flags.models and case.batch in flags.batches]
    with mock.patch.dict(layers.FORMS, FORMS):
        rows = list(compare(cases, flags.dtypes, flags.forms, device))
    prices = [row["price"] for row in rows if row["price"] is not None]
    print(f"{sum(price <= TARGET for price in prices)} of {len(prices)} prices are {TARGET} or less")
    if flags.json:
        flags.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
