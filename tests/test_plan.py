"""What a run would take, told from its compiled round."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from configs import arrays, landmarks, sop
from fedss_jax import chips, feed, packing, parallel, plan, simulation
from fedss_jax.config import resolve
from fedss_jax.report import plan as report
from fedss_jax.types import UserError

needs_compiler = pytest.mark.skipif(not chips.has_compiler(), reason="the TPU compiler is not installed")


def make(dataset, mesh, topology="", **settings):
    config = arrays.get_config()
    config.rounds, config.clients_per_round, config.num_negatives, config.client.batch_size = 3, 5, 6, 4
    config.data.residency = "host"
    config.update_from_flattened_dict(settings)
    return plan.make(simulation.set_up(resolve(config), dataset, mesh), topology, [])


def slice_of(topology):
    return parallel.make_mesh(chips.describe(topology))


def test_on_this_machines_devices(dataset):
    made = make(dataset, parallel.make_mesh(jax.devices()[:2]))
    assert made.devices == 2 and made.chip is None and made.memory.fits
    assert made.traffic.seconds is None and not made.traffic.unknown
    assert made.traffic.moved > 0 and made.traffic.sent["all-reduce"] > 0
    assert 0 < made.work.examples <= made.work.slots and made.work.operations > 0
    text = report.block(json.loads(json.dumps(dataclasses.asdict(made))))
    assert "fits            yes: " in text and "seconds" not in text.split("compiled")[0]


@needs_compiler
@pytest.mark.parametrize("method", ["fedss", "fullsoftmax", "centralized"])
def test_for_a_tpu_slice_that_is_not_here(dataset, method):
    """FullSoftmax has its W spread over the chips, which then work together on each client."""
    settings = {"method": method, "server.shard_rows": "yes"}
    made = make(dataset, slice_of("v5e:2x2"), "v5e:2x2", **settings)
    assert made.devices == 4 and made.memory.fits
    assert not made.traffic.unknown  # the compiler has kept the names of loops whose length follows from the cohort
    assert made.memory.limit == 15.75 * 2**30 and {"rows", "encoder", "examples"} <= made.memory.arguments.keys()
    assert made.traffic.seconds > made.traffic.estimated > 0
    assert made.traffic.sent["all-reduce"] > 0
    text = report.block(dataclasses.asdict(made))
    assert "4 x TPU v5 lite (v5e:2x2)" in text and "a round, estimated" in text and "of the chips' peak" in text


@needs_compiler
def test_a_hundred_times_the_classes_take_no_more_of_a_round(dataset):
    """W lies row after row. By columns, a chip would turn its share around in every round to reach some rows."""
    mesh = slice_of("v5e:16x16")
    few, many = (
        make(dataclasses.replace(dataset, num_classes=n), mesh, "v5e:16x16", **{"server.shard_rows": "yes"})
        for n in (1_000_000, 100_000_000)
    )
    of_rows = many.memory.arguments["rows"]
    assert of_rows > 50 * few.memory.arguments["rows"]
    assert many.memory.temporaries - few.memory.temporaries < of_rows / 50
    assert many.traffic.moved < of_rows / 10
    assert many.traffic.seconds < 1.1 * few.traffic.seconds


@needs_compiler
def test_what_does_not_fit_says_how_much_it_needs_and_what_to_change(dataset):
    many = dataclasses.replace(dataset, num_classes=100_000_000)
    made = make(many, slice_of("v5e:1x1"), "v5e:1x1", **{"model.dim": 256})
    rows = 2 * 256 * 4 * 100_000_000
    assert not made.memory.fits and made.traffic is None
    assert made.memory.needed > made.memory.arguments["rows"] > rows
    assert not any("clients_per_step" in remedy for remedy in made.remedies)  # it is W that is too large
    assert made.remedies[0] == "more chips, over which W is spread"
    assert "--config.model.dim=128, which is 256 now" in made.remedies
    assert not any("residency" in remedy or "remat" in remedy for remedy in made.remedies)  # they would not help
    text = report.block(dataclasses.asdict(made))
    assert "fits            NO: " in text and "what to change  more chips" in text


def test_only_remedies_that_apply_are_named(dataset):
    mesh = parallel.make_mesh(jax.devices()[:2])
    config = arrays.get_config()
    config.update_from_flattened_dict({"data.residency": "device", "server.shard_rows": "no", "client.batch_size": 8})
    setup = simulation.set_up(resolve(config), dataset, mesh)
    memory = plan.Memory(100.0, 2000.0, {"rows": 300.0, "examples": 300.0}, None)
    named = " ".join(plan.list_remedies(setup, memory))
    for remedy in ("shard_rows=yes", "residency=host", "clients_per_step=", "part_size=4", "dtype=bfloat16"):
        assert f"--config.{remedy}" in named or remedy in named
    assert "remat" not in named and "touched_only" not in named
    small = plan.Memory(100.0, 101.0, {"rows": 1.0, "examples": 0.0}, None)
    assert "shard_rows" not in " ".join(plan.list_remedies(setup, small))


def test_the_course_of_lanes_by_hand():
    # Two devices of two lanes. Lane 0: three steps; lane 1: two and one; lane 2: four; lane 3: nobody.
    steps, lane = np.array([1, 4, 3, 2, 0]), np.array([1, 2, 0, 1, 4])
    assert packing.course(steps, lane, 2) == (4, 2, 2 * 3 + 2 * 4)  # clients end after steps 2 and 3; and after 4


def small_config(config_file, variant=""):
    config = config_file.get_config(variant)
    config.model.name = "small"
    config.model.options = {"layers": ((8, 8, 8),), "groups": 4}
    config.data.image_size, config.data.crop = 20, 16
    config.rounds, config.clients_per_round, config.num_negatives = 2, 2, 4
    return config


def test_without_the_data_the_stand_in_is_planned(tmp_path):
    config = small_config(landmarks)
    config.data.root = str(tmp_path / "nowhere")
    config.data.images = "pictures"  # their folder; in the stand-in's data it is their number
    made = plan.plan(config, "", landmarks.get_config("standin").data)
    assert "164,172 images of 2,028 classes at 1,262 clients" in made.what
    assert any("the data is not here" in note for note in made.notes)
    assert made.memory.arguments["examples"] % (20 * 20 * 3) == 0  # as large as the config's own
    with pytest.raises(UserError, match="which is no folder"):
        plan.plan(config, "", None)


def test_more_classes_than_anybody_holds():
    config = small_config(sop, "standin")
    config.data.num_classes = 1_000_000
    setup = simulation.prepare(config, parallel.make_mesh(jax.devices()[:1]))
    assert [*plan.unseen_classes(setup)] == [
        "of 1,000,000 classes 11,920 are held by clients; the others are only drawn as negatives"
    ]


@needs_compiler
@pytest.mark.parametrize("topology", ["v5e", "v5e-8", "v5e:3x3", "v9:2x2"])
def test_unknown_slices_are_refused_in_one_line(topology):
    with pytest.raises(UserError) as error:
        chips.describe(topology)
    assert f"topology is {topology!r}" in str(error.value) and "v5e:16x16" in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@needs_compiler
def test_devices_that_are_only_described_have_a_memory():
    assert feed.device_memory(chips.describe("v5e:2x2")[0]) == 15.75 * 2**30
    core = chips.describe("v4:2x2x1")[0]
    assert chips.is_part(core) and chips.of(core).peak == 275e12 / 2


@needs_compiler
def test_the_compiler_is_quiet_where_there_is_no_tpu():
    code = "import jax; from fedss_jax import chips; chips.keep_quiet(); print(jax.devices()[0].platform)"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TPU_", "JAX_PLATFORMS"))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and (done.stdout != "cpu\n" or done.stderr == ""), done.stderr
