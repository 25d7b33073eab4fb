"""Examples reach a round by another way, and nothing else changes."""

from __future__ import annotations

import threading

import chex
import jax
import numpy as np
import pytest
from conftest import CLASSES, LOGITS, linear_model, make_server
from jax.experimental import multihost_utils
from test_round import OPTIONS, ROOT, start

from fedss_jax import centralized, feed, methods, parallel
from fedss_jax.client import LocalTraining
from fedss_jax.crew import ALONE, Together
from fedss_jax.data import send
from fedss_jax.data.augment import UNCHANGED
from fedss_jax.dispatch import Dispatcher, compile_rounds
from fedss_jax.round import Packing, make_round

ROUNDS = 4


def simulate(dataset, population, residency, name, *, devices=1, K=5, lanes=2, sharded=True, images=None, **more):
    mesh = parallel.make_mesh(jax.devices()[:devices])
    method = methods.create(name, OPTIONS)
    server = make_server(mesh, method, sharded=sharded)
    crew = Together(server.rows.layout) if method.requests_all and server.rows.layout.sharded else ALONE
    training = LocalTraining(linear_model(), method, UNCHANGED, 0.1, 4, 2, LOGITS, CLASSES, crew=crew)
    layout = Packing(K, lanes, places=60)
    kind = (
        make_round(training, server, layout, mesh, **more)
        if method.federated
        else centralized.make_round(training, server, 3, mesh)
    )
    images = dataset.train.images if images is None else images
    inputs = (dataset.train.labels, population, ROOT)
    state = server.start(start())
    stored = feed.abstract(images, residency, kind, inputs)
    on_devices = parallel.replicate(mesh, inputs)
    with feed.make_feed(images, residency, kind, ROUNDS, inputs) as stream:
        run = compile_rounds(kind, state, stored, on_devices, 0)()
        dispatcher = Dispatcher(run, state, stream, on_devices, 0)
        losses = [float(stats.loss) for _, stats in dispatcher.run_to(ROUNDS)]
    return multihost_utils.process_allgather(server.theta(dispatcher.state), tiled=True), losses


@pytest.mark.parametrize(
    ("name", "devices", "residency"), [("fedss", 1, "host"), ("fedss", 8, "disk"), ("centralized", 8, "disk")]
)
def test_streamed_and_resident_examples_give_the_same_numbers(
    dataset, population, monkeypatch, name, devices, residency
):
    # As users have it. As other tests are compiled, the two programs add up in other orders.
    monkeypatch.setattr(parallel, "compiler_options", lambda mesh: {"xla_cpu_use_fusion_emitters": True})
    resident, resident_losses = simulate(dataset, population, "device", name, devices=devices)
    streamed, losses = simulate(dataset, population, residency, name, devices=devices)
    chex.assert_trees_all_close(streamed, resident, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(losses, resident_losses, rtol=1e-6)


class Counting:
    """Images that note who asks for them."""

    def __init__(self, images):
        self._images, self.asked, self.threads, self.rows = images, 0, set(), []
        self.shape, self.dtype = images.shape, images.dtype

    def __len__(self):
        return len(self._images)

    def __getitem__(self, rows):
        self.asked += 1
        self.rows += np.ravel(rows).tolist()
        self.threads.add(threading.current_thread())
        return self._images[rows]


def stream(images, rows_of, rounds):
    mesh = parallel.make_mesh(jax.devices()[:1])
    return feed.StreamFeed(images, rows_of, rounds, parallel.NamedSharding(mesh, parallel.BY_CLIENT))


def test_a_thread_gathers_ahead_but_not_beyond_the_last_round():
    images = Counting(np.arange(20.0).reshape(10, 2))
    with stream(images, lambda round: np.array([[round, round + 1]]), rounds=5) as ahead:
        first = ahead.stored(0)
        np.testing.assert_array_equal(first.images[0], [[0, 1], [2, 3]])
        for coming in list(ahead._coming.values()):
            coming.result()
        assert images.asked == 1 + feed.AHEAD
        for round in range(1, 5):
            np.testing.assert_array_equal(ahead.stored(round).images[0, 0], [2 * round, 2 * round + 1])
        assert images.asked == 5
    assert images.threads and threading.main_thread() not in images.threads
    assert not any(thread.is_alive() for thread in images.threads)


def test_a_failure_while_reading_reaches_the_loop():
    def broken(round):
        if round == 2:
            raise OSError("the disk is gone")
        return np.zeros((1, 1), int)

    with stream(np.zeros((3, 2)), broken, rounds=4) as ahead:
        ahead.stored(0)
        ahead.stored(1)
        with pytest.raises(OSError, match="the disk is gone"):
            ahead.stored(2)


def test_padding_is_never_read():
    images = np.arange(1, 7).reshape(3, 2)
    rows = np.array([[2, -1], [0, 1]])
    assert send.gather(images, rows).tolist() == [[[5, 6], [0, 0]], [[1, 2], [3, 4]]]


def test_a_device_without_examples_is_sent_its_padding_once():
    images, blanks = np.arange(1, 7).reshape(3, 2), {}
    sharding = parallel.NamedSharding(parallel.make_mesh(jax.devices()[:4]), parallel.BY_CLIENT)
    rows = [np.array([2, -1, -1, -1, 0, 1, -1, -1]), np.array([-1, -1, -1, -1, 1, -1, 0, 2])]
    sent = [send.send(images, of_round, sharding, blanks) for of_round in rows]
    for found, of_round in zip(sent, rows):
        assert np.asarray(found).tolist() == send.gather(images, of_round).tolist()
        assert found.sharding.is_equivalent_to(sharding, 2)
    second = [found.addressable_shards[1].data.unsafe_buffer_pointer() for found in sent]
    assert second[0] == second[1] and set(blanks) == set(jax.devices()[:4]) - {jax.devices()[2]}


@pytest.mark.parametrize(
    ("device", "host", "chosen"), [(1000, 1000, "device"), (399, 200, "host"), (399, 199, "disk"), (400, 1, "device")]
)
def test_auto_takes_the_first_place_that_has_room(monkeypatch, device, host, chosen):
    images = np.zeros((25, 4), np.uint8)
    monkeypatch.setattr(feed, "device_memory", lambda _: device)
    monkeypatch.setattr(feed, "host_memory", lambda: host)
    mesh = parallel.make_mesh(jax.devices()[:1])
    assert feed.choose("auto", images, mesh) == chosen
    assert feed.choose("disk", images, mesh) == "disk"


def test_memory_is_known():
    assert 2**27 < feed.host_memory() < 2**50
    assert feed.device_memory(jax.devices()[0]) == pytest.approx(feed.host_memory() / 8, rel=0.2)  # shared by eight
