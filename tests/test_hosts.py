"""Several processes on one machine, as several hosts of a pod: the same numbers, and an end for all when one ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pytest
from processes import CASES
from starts import QUICKLY

from fedss_jax import hosts
from fedss_jax.types import UserError

HERE = Path(__file__).parent
SECONDS = 600  # for a process that ought to end; only a hang takes so long


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(count: int, command: list[str], **environment: str) -> list[subprocess.Popen[str]]:
    """So many processes of a command, in which {coordinator}, {count} and {number} are filled in."""
    coordinator = f"127.0.0.1:{free_port()}"
    return [
        subprocess.Popen(
            [word.format(coordinator=coordinator, count=count, number=number) for word in command],
            cwd=HERE.parent,
            env=os.environ | {"PYTHONPATH": f"{HERE.parent}:{HERE}", "XLA_FLAGS": QUICKLY, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]


def finish(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of each. Those that hang are killed, which fails the test."""
    try:
        ended = [process.communicate(timeout=SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *printed) for process, printed in zip(processes, ended)]


def simulate(folder: Path, count: int, *failure: str) -> list[tuple[int, str, str]]:
    command = [sys.executable, "tests/processes.py", str(folder), "{coordinator}", "{count}", "{number}", *failure]
    return finish(start(count, command))


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict[str, np.ndarray]:
    """What one process gets that has all four devices."""
    folder = tmp_path_factory.mktemp("alone")
    ((code, _, stderr),) = simulate(folder, 1)
    assert code == 0, stderr
    with np.load(folder / "results.npz") as results:
        return dict(results)


@pytest.mark.parametrize("count", [2, 4])
def test_several_processes_give_the_numbers_of_one(alone, tmp_path, count):
    for number, (code, printed, stderr) in enumerate(simulate(tmp_path, count)):
        assert code == 0, stderr
        assert ("done" in printed) == (number == 0)  # only one is heard
    with np.load(tmp_path / "results.npz") as results:
        assert {name.split("/")[0] for name in results} == {name for name in CASES if count in CASES[name][-1]}
        for name, found in results.items():
            np.testing.assert_allclose(found, alone[name], rtol=1e-4, atol=1e-5, err_msg=name)
    # Together they have read what was trained on, and none has read what another trains on.
    read = [json.loads((tmp_path / f"read-{number}.json").read_text()) for number in range(count)]
    rounds = 4
    assert max(Counter(row for rows in read for row in rows).values()) <= rounds
    assert sum(map(bool, read)) > 1 and all(len(rows) < sum(map(len, read)) for rows in read)


@pytest.mark.parametrize(
    ("failure", "own", "others"),
    [
        (("1", "mistaken"), "error: the disk is gone", "error: process 1 has ended: the disk is gone"),
        (("0", "mistaken"), "error: the disk is gone", "error: process 0 has ended: the disk is gone"),
        (("1", "unlucky"), "RuntimeError: out of luck", "error: process 1 has ended: RuntimeError: out of luck"),
        (("1", "killed"), "", "error: process 1 was lost"),
        (("0", "killed"), "", "another task died"),  # as JAX says it
        (
            ("-1", "other data"),
            "error: process 1 has data other than process 0; start all",
            "error: process 1 has data",
        ),
    ],
)
def test_what_ends_one_process_ends_all_and_they_say_why(tmp_path, failure, own, others):
    ended = simulate(tmp_path, 2, *failure)
    fails = int(failure[0])
    for number, (code, _, stderr) in enumerate(ended):
        assert code != 0
        assert (own if number == fails else others) in stderr, stderr
        if number != fails and failure != ("0", "killed"):
            assert len(stderr.strip().splitlines()) == 1 and "Traceback" not in stderr
    assert not (tmp_path / "results.npz").exists()


@pytest.mark.parametrize("number", [0, 1])
def test_a_process_that_nobody_joins_gives_up(number):
    began = time.monotonic()
    join = f"with hosts.together('127.0.0.1:{free_port()}', 2, {number}, join_seconds=3): pass"
    command = [sys.executable, "-c", f"from fedss_jax import hosts\n{join}"]
    ((code, _, stderr),) = finish(start(1, command))
    assert code != 0 and time.monotonic() - began < 60
    assert "have not all met at 127.0.0.1" in stderr and len(stderr.strip().splitlines()) == 1, stderr


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (("here:99", None, None), "--num_processes, --process_id is not set"),
        ((None, 2, 0), "--coordinator is not set"),
        (("here", 2, 0), "--coordinator is 'here'; it must be HOST:PORT"),
        (("here:99999", 2, 0), "it must be HOST:PORT"),
        (("here:99", 2, 2), "--process_id is 2; of 2 processes it is 0 to 1"),
    ],
)
def test_what_is_told_wrongly_is_one_line(told, message):
    with pytest.raises(UserError, match=message), hosts.together(*told, join_seconds=1):
        raise AssertionError("joined")


@pytest.mark.parametrize(
    ("environment", "joins"),
    [
        ({"SLURM_NTASKS": "4", "SLURM_STEP_NODELIST": "node[1-2]"}, True),
        ({"SLURM_NTASKS": "1", "SLURM_STEP_NODELIST": "node1"}, False),
        ({"SLURM_NTASKS": "4"}, False),  # inside salloc, but not started by srun
        ({}, False),
    ],
)
def test_srun_is_recognised(monkeypatch, environment, joins):
    for name in ("SLURM_NTASKS", "SLURM_STEP_NODELIST"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert hosts._on_slurm() == joins


@pytest.mark.parametrize(("platforms", "joins"), [("tpu,cpu", True), ("cpu", False), (None, False)])
def test_a_tpus_host_is_recognised(platforms, joins):
    before = jax.config.jax_platforms
    try:
        jax.config.update("jax_platforms", platforms)
        assert hosts._on_tpu() == joins
    finally:
        jax.config.update("jax_platforms", before)


def test_srun_tells_processes_where_to_meet(tmp_path):
    """The environment that srun gives its tasks, on this machine: no flag is needed."""
    port = free_port()
    job = dict(SLURM_JOB_ID="7", SLURM_STEP_NODELIST="127.0.0.1", SLURM_NTASKS="2", SLURM_LOCALID="0")
    told = (
        "from fedss_jax import hosts\nimport jax\nwith hosts.together(None, None, None, 60): print(jax.device_count())"
    )
    processes = [
        process
        for number in range(2)
        for process in start(
            1, [sys.executable, "-c", told], SLURM_PROCID=f"{number}", JAX_COORDINATOR_PORT=f"{port}", **job
        )
    ]
    (first, second) = finish(processes)
    assert first[0] == second[0] == 0, first[2] + second[2]
    assert first[1].splitlines()[-1] == "2" and "2" not in second[1].splitlines()


def test_a_launched_run_writes_once_and_agrees_with_one_process(tmp_path):
    settings = ["--config=configs/glyphs.py:smoke", "--config.rounds=3", "--config.data.residency=host"]
    several = ["--coordinator={coordinator}", "--num_processes={count}", "--process_id={number}"]
    command = [sys.executable, "launch.py", *settings, *several, f"--workdir={tmp_path}/" + "{count}-{number}"]
    for code, _, stderr in finish(start(2, command)):
        assert code == 0, stderr
    alone = [sys.executable, "launch.py", *settings, f"--workdir={tmp_path}/alone"]
    ((code, _, stderr),) = finish(start(1, alone, XLA_FLAGS=f"{QUICKLY} --xla_force_host_platform_device_count=2"))
    assert code == 0, stderr
    assert not (tmp_path / "2-1").exists()
    written = [(tmp_path / run / "metrics.jsonl").read_text().splitlines() for run in ("2-0", "alone")]
    runs = [[json.loads(line) for line in lines] for lines in written]
    for together, by_itself in zip(*runs, strict=True):
        assert together.keys() == by_itself.keys()
        for name, value in by_itself.items():
            assert together[name] == pytest.approx(value, rel=1e-3, abs=5e-3), name
    names = {path.name for path in (tmp_path / "2-0").iterdir()}
    assert {"config.json", "metrics.jsonl", "summary.json", "encoder.safetensors", "curves.png"} <= names


def test_a_signal_at_one_process_stops_all_and_another_number_of_processes_goes_on(tmp_path):
    labels = np.repeat(np.arange(23), 12)
    features = np.random.default_rng(0).normal(size=(len(labels), 8)).astype(np.float32)
    np.savez(tmp_path / "train.npz", features=features, labels=labels, clients=np.arange(len(labels)) // 23)
    workdir = tmp_path / "run"
    settings = ["--config=configs/arrays.py", f"--config.data.train={tmp_path}/train.npz", f"--workdir={workdir}"]
    several = ["--coordinator={coordinator}", "--num_processes={count}", "--process_id={number}"]
    launched = [sys.executable, "launch.py", *settings]
    processes = start(2, [*launched, *several, "--config.rounds=1000000"])
    lines, deadline = workdir / "metrics.jsonl", time.monotonic() + SECONDS
    while not (lines.exists() and lines.read_bytes().count(b"\n") > 5) and time.monotonic() < deadline:
        time.sleep(0.05)
    processes[1].send_signal(signal.SIGTERM)
    first, second = finish(processes)
    assert first[0] == second[0] == 143, first[2] + second[2]
    (done,) = re.findall(r"stopped after round (\d+) of 1000000; saved up to round (\d+)", first[1])
    assert done[0] == done[1] and lines.read_bytes().count(b"\n") == int(done[0]) + 1
    rounds = int(done[0]) + 20
    ((code, printed, stderr),) = finish(start(1, [*launched, f"--config.rounds={rounds}"]))
    assert code == 0 and f"going on after round {done[0]} of {rounds}" in printed, stderr
    assert [json.loads(line)["round"] for line in lines.read_text().splitlines()] == list(range(rounds + 1))
