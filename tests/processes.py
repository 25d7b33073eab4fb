"""One of several processes that simulate together on four devices: what test_hosts.py starts.

    python processes.py FOLDER COORDINATOR PROCESSES NUMBER [WHO_FAILS HOW]

Process 0 leaves theta and losses of each case in FOLDER, every process which rows of the examples it has read.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

DEVICES = 4
# method, whether W is spread over the devices, where the examples stay, and in how many processes
CASES = {
    "fedss": ("fedss", True, "disk", (1, 2, 4)),
    "fedss, W everywhere": ("fedss", False, "device", (1, 2)),
    "fullsoftmax": ("fullsoftmax", True, "device", (1, 2)),
    "centralized": ("centralized", False, "disk", (1, 2)),
}


def main(folder: Path, coordinator: str, processes: int, number: int, fails: int = -1, how: str = "") -> None:
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] += f" --xla_force_host_platform_device_count={DEVICES // processes}"
    import jax
    import numpy as np

    from fedss_jax import hosts
    from fedss_jax.types import UserError

    hosts.LOST_SECONDS = 4.0
    with hosts.together(coordinator, processes, number, join_seconds=60):
        assert jax.device_count() == DEVICES  # before conftest asks for eight
        import conftest
        import test_feed

        hosts.check_same("numbers", np.arange(3))
        assert hosts.least(2**40 + number) == 2**40
        if number == fails:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise UserError("the disk is gone") if how == "mistaken" else RuntimeError("out of luck")
        if how == "other data":
            hosts.check_same("data", number == 1)

        dataset = conftest.ragged_dataset()
        population, _ = conftest.make_population(dataset)
        read = test_feed.Counting(dataset.train.images)
        results = {}
        for name, (method, sharded, residency, counts) in CASES.items():
            if processes not in counts:
                continue
            images = read if name == "fedss" else dataset.train.images
            (encoder, rows), losses = test_feed.simulate(
                dataset, population, residency, method, devices=DEVICES, sharded=sharded, images=images
            )
            results |= {f"{name}/A": encoder["A"], f"{name}/W": rows, f"{name}/losses": losses}
        (folder / f"read-{number}.json").write_text(json.dumps(read.rows))
        if hosts.is_first():
            np.savez(folder / "results.npz", **results)
        print("done")


if __name__ == "__main__":
    folder, coordinator, processes, number, *failure = sys.argv[1:]
    main(Path(folder), coordinator, int(processes), int(number), *(kind(x) for kind, x in zip((int, str), failure)))
