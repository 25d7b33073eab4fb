"""What the host costs in the glyph demo, and whether a long run stays as it began: no compilation, flat memory.

    python -m benchmarks.steady [--rounds N] [--long-rounds N]

Host overhead: the demo's loop with all that it writes, against the same rounds in one dispatch that the host only waits
for, in turns. The long run is small rounds of 10 clients with a linear encoder.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np

from benchmarks import results
from configs import glyphs
from fedss_jax import models
from fedss_jax.dispatch import Dispatcher, compile_rounds
from fedss_jax.metrics import Progress, Workdir
from fedss_jax.simulation import Simulation, build
from fedss_jax.train import round_scalars


def resident_bytes() -> int:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def rounds_with_host(simulation: Simulation, dispatcher: Dispatcher, until: int, folder: Workdir) -> Iterator[int]:
    """What train.py does between evaluations."""
    parameters = models.count_parameters(dispatcher.state.encoder)
    progress = Progress(until, until)
    for round, stats in dispatcher.run_to(until):
        scalars = round_scalars(stats, parameters, simulation.setup.config.model.dim)
        folder.write(round, scalars)
        progress.update(round, scalars)
        yield round
    progress.close()


def host_overhead(rounds: int, folder: Workdir) -> dict[str, float]:
    """Shares of the time that the loop takes beyond that of its rounds in one dispatch; the median of several."""
    simulation = build(glyphs.get_config())
    run = compile_rounds(
        simulation.setup.kind, simulation.state, simulation.setup.abstract_stored, simulation.inputs, 0
    )()
    with simulation.feed as feed:
        dispatcher = Dispatcher(run, simulation.state, feed, simulation.inputs, 0)
        list(
            rounds_with_host(simulation, dispatcher, rounds, folder)
        )  # warm up, and find the number of rounds at a time
        looped, alone = [], []
        for repeat in range(1, 6):
            tick = time.perf_counter()
            list(rounds_with_host(simulation, dispatcher, (1 + repeat) * rounds, folder))
            looped.append(time.perf_counter() - tick)
            # The dispatcher's own state is given up to this dispatch, and goes on from what it returns.
            tick = time.perf_counter()
            dispatcher.state, stats = run(jnp.int32(rounds), dispatcher.state, feed.stored(0), *simulation.inputs)
            jax.block_until_ready(stats)
            alone.append(time.perf_counter() - tick)
    overheads = [a / b - 1 for a, b in zip(looped, alone)]
    return {"overhead": float(np.median(overheads)), "seconds_a_round": float(np.median(alone)) / rounds}


def long_run(rounds: int, folder: Workdir) -> dict[str, float]:
    config = glyphs.get_config("smoke")
    config.rounds, config.model.name, config.clients_per_round = rounds, "small", 8
    config.model.options = {"layers": ((8, 8, 8),), "groups": 2}
    simulation = build(config)
    run = compile_rounds(
        simulation.setup.kind, simulation.state, simulation.setup.abstract_stored, simulation.inputs, 0
    )()
    compilations: list[str] = []
    memory: list[int] = []
    began = time.perf_counter()
    with simulation.feed as feed:
        dispatcher = Dispatcher(run, simulation.state, feed, simulation.inputs, 0)
        for round in rounds_with_host(simulation, dispatcher, rounds, folder):
            if round == rounds // 10:
                jax.monitoring.register_event_duration_secs_listener(
                    lambda event, *_, **__: compilations.append(event) if "backend_compile" in event else None
                )
            if round % (rounds // 10) == 0:
                memory.append(resident_bytes())
    return {
        "rounds": rounds,
        "rounds_per_second": rounds / (time.perf_counter() - began),
        "compilations": len(compilations),
        "megabytes_after_a_tenth": memory[0] / 1e6,
        "megabytes_at_the_end": memory[-1] / 1e6,
        "growth": memory[-1] / memory[0] - 1,
    }


def main() -> None:
    parser = results.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--long-rounds", type=int, default=10_000)
    flags = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as temporary,
        Workdir(Path(temporary, "demo"), {}) as demo,
        Workdir(Path(temporary, "long"), {}) as small,
    ):
        demo.begin()
        small.begin()
        overhead = host_overhead(flags.rounds, demo)
        print(
            f"glyph demo: {1e3 * overhead['seconds_a_round']:.0f} ms a round; the host adds {overhead['overhead']:.1%}"
        )
        long = long_run(flags.long_rounds, small)
    print(
        f"{long['rounds']:,} rounds at {long['rounds_per_second']:.0f} a second:"
        f" {long['compilations']} compilations after the first tenth;"
        f" memory {long['megabytes_after_a_tenth']:.0f} MB then, {long['megabytes_at_the_end']:.0f} MB at the end"
        f" ({long['growth']:+.1%})"
    )
    results.save(flags.out, "steady", {"host": overhead, "long": long})


if __name__ == "__main__":
    main()
