"""A checkpoint has the bits of its round, on any devices; one that is damaged or cannot be written does no harm."""

from __future__ import annotations

import contextlib
import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import DIM, linear_model, make_server
from disks import file_limit, small_disk

from fedss_jax import methods, parallel
from fedss_jax.checkpoint import METADATA, Checkpoints
from fedss_jax.digest import digest
from fedss_jax.types import Theta, UserError

# What of Orbax is under way when a part of it fails is not waited for, and Python says so, sooner or later.
fails = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:coroutine .* was never awaited:RuntimeWarning"
)

CLASSES = 23
FEDSS = methods.create("fedss", {"num_negatives": 3, "correct_logits": True})
OPTIMIZERS = {"lazy": {}, "dense": {"optimizer": "adam", "options": {}}}
IDENTITY = {"num_classes": CLASSES, "root_key": [1, 2], "data": "ab"}
HERE = {"devices": "1 cpu", "lanes": 3}


@pytest.fixture(autouse=True)
def collect():
    """So that it says so here, not in another test."""
    yield
    gc.collect()


def make(devices, kind="lazy", classes=CLASSES):
    """A server on so many devices, and its state after made-up rounds: no entry is like another."""
    server = make_server(parallel.make_mesh(jax.devices()[:devices]), FEDSS, classes, **OPTIMIZERS[kind])
    rows = jax.random.normal(jax.random.key(1), (classes, DIM))
    return server, changed(server.start(Theta(linear_model().init(jax.random.key(0)), rows)))


@jax.jit
def changed(state):
    """Another state, from the bits of this one alone."""
    return jax.tree.map(lambda a: a + 1 if a.dtype == jnp.int32 else a * 1.01 + jnp.cos(a), state)


def abstract(state):
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), state)


@contextlib.contextmanager
def opened(tmp_path, server, keep=2, on_error="continue", here=HERE, **other):
    folder, layout = tmp_path / "checkpoints", server.rows.layout
    with Checkpoints(folder, layout, IDENTITY | other, here, keep=keep, on_error=on_error) as checkpoints:
        yield checkpoints


def save(checkpoints, round, state, score=None):
    checkpoints.save(round, state, score, {"seconds": 0.1 * round}, sync=lambda: None)


def without_padding(server, state):
    layout = server.rows.layout
    rows = jax.tree.map(lambda a: np.asarray(a)[:CLASSES] if layout.is_by_row(a) else np.asarray(a), state.rows)
    return jax.tree.map(np.asarray, state._replace(rows=rows))


def assert_equal(first, second):
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second)):
        np.testing.assert_array_equal(a, b, strict=True)


def test_what_is_written_are_the_bits_of_the_round_though_its_memory_is_used_again(tmp_path):
    server, state = make(8, classes=40_000)
    kept = jax.tree.map(lambda a: np.array(a, copy=True), state)
    run_on = jax.jit(changed, donate_argnums=0)
    with opened(tmp_path, server) as checkpoints:
        shapes = abstract(state)
        save(checkpoints, 3, state)
        for _ in range(20):
            state = run_on(state)
        jax.block_until_ready(state)
        checkpoints.wait()
        found = checkpoints.restore(shapes)
    assert found.round == 3 and found.about == {"seconds": 0.1 * 3}
    assert_equal(jax.tree.map(np.asarray, found.state), kept)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize(("written", "read"), [(8, 1), (1, 8), (5, 3)])
def test_written_on_some_devices_it_is_read_on_others(tmp_path, kind, written, read):
    server, state = make(written, kind)
    with opened(tmp_path, server) as checkpoints:
        save(checkpoints, 5, state)
        checkpoints.wait()
    other, fresh = make(read, kind)
    assert server.rows.layout.num_rows != other.rows.layout.num_rows  # 24, 23, 25
    with opened(tmp_path, other) as checkpoints:
        found = checkpoints.restore(abstract(fresh)).state
    assert_equal(without_padding(other, found), without_padding(server, state))
    assert jax.tree.map(lambda a: a.sharding, found) == jax.tree.map(lambda a: a.sharding, abstract(fresh))
    assert digest(other.rows.layout, found) == digest(server.rows.layout, state)


def test_the_digest_sees_every_bit_and_no_padding():
    server, state = make(8)
    layout, before = server.rows.layout, digest(server.rows.layout, state)
    seen = {before}
    for place in ((0, 0), (0, 1), (1, 0), (CLASSES - 1, DIM - 1)):
        for factor in (1 + 2**-23, -1.0):
            seen.add(
                digest(layout, state._replace(rows=state.rows._replace(rows=state.rows.rows.at[place].mul(factor))))
            )
    swapped = state.rows.rows.at[jnp.array([0, 1])].set(state.rows.rows[jnp.array([1, 0])])
    seen.add(digest(layout, state._replace(rows=state.rows._replace(rows=swapped))))
    seen.add(digest(layout, state._replace(round=state.round + 1)))
    seen.add(
        digest(layout, state._replace(rows=state.rows._replace(rows=state.rows.velocity, velocity=state.rows.rows)))
    )
    assert len(seen) == 12
    padding = state.rows.rows.at[CLASSES:].set(3.0)
    assert digest(layout, state._replace(rows=state.rows._replace(rows=padding))) == before


def test_the_newest_and_the_best_stay(tmp_path):
    server, state = make(1)
    with opened(tmp_path, server, keep=2) as checkpoints:
        for round, score in ((1, 0.1), (2, 0.9), (3, None), (4, 0.5), (5, None), (6, 0.3)):
            save(checkpoints, round, state, score)
        checkpoints.wait()
        assert checkpoints.rounds() == [2, 5, 6] and checkpoints.best() == 2
    with opened(tmp_path, server, keep=1) as checkpoints:  # it is known after a new start as well
        assert checkpoints.restore(abstract(state), "best").round == 2
        assert checkpoints.restore(abstract(state), "5").round == 5
        save(checkpoints, 7, state, 0.95)
        checkpoints.wait()
        assert checkpoints.rounds() == [7]
        with pytest.raises(UserError, match="there is no checkpoint 3 in .*; choose last, best or one of 7"):
            checkpoints.restore(abstract(state), "3")


def data_files(folder):
    """Where a checkpoint has its numbers; small ones are in there twice."""
    return [path for path in folder.rglob("*") if path.is_file() and path.parent.name == "d"]


def truncate(folder):
    for path in data_files(folder):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_bit(folder):
    number = np.asarray(make(1)[1].rows.rows)[7, 1].tobytes()
    found = [path for path in data_files(folder) if number in path.read_bytes()]
    assert found
    for path in found:
        content = bytearray(path.read_bytes())
        content[content.index(number)] ^= 1
        path.write_bytes(content)


def lose_a_file(folder):
    (folder / METADATA).unlink()


def change_what_it_says(folder):
    text = (folder / METADATA).read_text()
    assert '"seconds": ' in text
    (folder / METADATA).write_text(text.replace('"seconds": ', '"seconds": 3'))


def change_a_name(folder):
    text = (folder / METADATA).read_text()
    (folder / METADATA).write_text(text.replace('"num_classes"', '"num_classez"'))


@fails
@pytest.mark.parametrize("damage", [truncate, flip_a_bit, lose_a_file, change_what_it_says, change_a_name])
def test_a_damaged_newest_one_is_put_aside_for_the_one_before(tmp_path, capsys, damage):
    server, state = make(1)
    with opened(tmp_path, server) as checkpoints:
        for round in (10, 20):
            save(checkpoints, round, state)
        checkpoints.wait()
    damage(tmp_path / "checkpoints" / "20")
    with opened(tmp_path, server) as checkpoints:
        found = checkpoints.restore(abstract(state))
        assert found.round == 10
        assert_equal(jax.tree.map(np.asarray, found.state), jax.tree.map(np.asarray, state))
        printed = capsys.readouterr().out
        assert "warning: checkpoint" in printed and "20 is damaged (" in printed and "going on from round 10" in printed
        checkpoints.tidy()
        save(checkpoints, 20, state)  # its name is free
        checkpoints.wait()
        assert checkpoints.rounds() == [10, 20]
    for round in (10, 20):
        damage(tmp_path / "checkpoints" / str(round))
    with (
        opened(tmp_path, server) as checkpoints,
        pytest.raises(UserError, match="no checkpoint .* can be read .*round 10"),
    ):
        checkpoints.restore(abstract(state))
    assert (tmp_path / "checkpoints" / "20").exists()  # nothing was put aside for nothing


def test_what_a_killed_writer_leaves_is_cleared_away(tmp_path):
    server, state = make(1)
    with opened(tmp_path, server) as checkpoints:
        save(checkpoints, 1, state)
        checkpoints.wait()
    folder = tmp_path / "checkpoints"
    for left in ("2.orbax-checkpoint-tmp-3", "0.deleted", "7.damaged", "1.backup"):
        (folder / left).mkdir()
    before = {path.name for path in folder.iterdir()}
    with opened(tmp_path, server) as checkpoints:
        assert checkpoints.rounds() == [1] and checkpoints.restore(abstract(state)).round == 1
        assert {path.name for path in folder.iterdir()} == before  # who only reads may not be alone
        checkpoints.tidy()
    assert {path.name for path in folder.iterdir()} == {"1", "7.damaged", "1.backup"}


def test_who_reads_beside_a_writer_finds_what_is_there_by_then(tmp_path, capsys):
    server, state = make(1)
    with opened(tmp_path, server, keep=1) as writer, opened(tmp_path, server) as reader:
        save(writer, 1, state)
        writer.wait()
        rounds, listed = reader.rounds, []

        def write_meanwhile():
            listed.append(rounds())
            if len(listed) == 1:
                save(writer, 2, state)
                writer.wait()
            return listed[-1]

        reader.rounds = write_meanwhile
        assert reader.restore(abstract(state)).round == 2 and listed == [[1], [2]]
    assert capsys.readouterr().out == ""


def test_another_arrangement_is_told(tmp_path):
    server, state = make(1)
    with opened(tmp_path, server) as checkpoints:
        save(checkpoints, 1, state)
        checkpoints.wait()
    for here, told in ((HERE, []), (HERE | {"lanes": 4}, ["lanes: 3 before, 4 now"])):
        with opened(tmp_path, server, here=here) as checkpoints:
            assert checkpoints.restore(abstract(state)).changed == told


def test_old_ones_that_cannot_be_deleted_do_not_end_the_run(tmp_path, capsys, monkeypatch):
    server, state = make(1)

    def refuse(*_):
        raise OSError(39, "Directory not empty")

    with opened(tmp_path, server, keep=1) as checkpoints:
        save(checkpoints, 1, state)
        checkpoints.wait()
        monkeypatch.setattr(checkpoints, "_delete_old", refuse)
        save(checkpoints, 2, state)
        checkpoints.wait()
        assert checkpoints.rounds() == [1, 2]
    assert "cannot be deleted (Directory not empty)" in capsys.readouterr().out


def test_a_checkpoint_of_other_data_or_versions_is_refused(tmp_path):
    server, state = make(1)
    with opened(tmp_path, server) as checkpoints:
        save(checkpoints, 1, state)
        checkpoints.wait()
    more, bigger = make(1, classes=24)
    with (
        opened(tmp_path, more, num_classes=24) as checkpoints,
        pytest.raises(UserError, match="is of 23 classes, and the data has 24 now"),
    ):
        checkpoints.restore(abstract(bigger))
    with (
        opened(tmp_path, server, data="cd") as checkpoints,
        pytest.raises(UserError, match="is of other data: labels, or who holds which"),
    ):
        checkpoints.restore(abstract(state))
    with (
        opened(tmp_path, server, root_key=[1, 3]) as checkpoints,
        pytest.raises(UserError, match="another version"),
    ):
        checkpoints.restore(abstract(state))
    dense, other = make(1, "dense")
    with opened(tmp_path, dense) as checkpoints, pytest.raises(UserError, match="another version"):
        checkpoints.restore(abstract(other))


@contextlib.contextmanager
def full_disk(tmp_path):
    """A folder on a disk that becomes full, and a function that fills it or makes room."""
    folder = tmp_path / "disk"
    with small_disk(folder, 1) as mounted, contextlib.ExitStack() as stack:

        def fill(full):
            if mounted:
                (folder / "filler").unlink(missing_ok=True)
                if full:
                    with contextlib.suppress(OSError), (folder / "filler").open("wb") as file:
                        while True:
                            file.write(bytes(4096))
            elif full:
                stack.enter_context(file_limit(2000))
            else:
                stack.close()

        yield folder, fill


@fails
def test_a_full_disk_is_told_and_the_last_good_one_stays_good(tmp_path, capsys):
    server, state = make(1, classes=2000)
    later = changed(state)
    with full_disk(tmp_path) as (disk, fill), opened(disk, server, keep=1) as checkpoints:
        save(checkpoints, 1, state)
        checkpoints.wait()
        fill(True)
        for round in (2, 3):
            save(checkpoints, round, later)
            checkpoints.wait()
        printed = capsys.readouterr().out
        assert printed.count("warning: the checkpoint of round") == 2 and "the last good one is of round 1" in printed
        assert "No space left on device" in printed or "File too large" in printed
        assert len(printed.strip().splitlines()) == 2
        fill(False)
        assert checkpoints.rounds() == [1] and [path.name for path in checkpoints.folder.iterdir()] == ["1"]
        found = checkpoints.restore(abstract(state))
        assert_equal(jax.tree.map(np.asarray, found.state), jax.tree.map(np.asarray, state))
        save(checkpoints, 4, later)
        checkpoints.wait()
        assert checkpoints.rounds() == [4]  # there is room again


@fails
def test_it_stops_if_it_is_to(tmp_path):
    server, state = make(1)
    (tmp_path / "checkpoints").write_text("a file where a folder should be")
    with (
        opened(tmp_path, server, on_error="stop") as checkpoints,
        pytest.raises(UserError, match=r"checkpoint of round 1 cannot be written .* there is none yet; make room"),
    ):
        save(checkpoints, 1, state)


@fails
def test_a_disk_that_turns_read_only_is_told(tmp_path, capsys):
    """As a failing disk does; where that cannot be made, a file stands where the folder should be."""
    server, state = make(1)
    with small_disk(tmp_path / "disk", 4) as make_read_only, opened(tmp_path / "disk", server) as checkpoints:
        if make_read_only is None:
            checkpoints.folder.write_text("")
        else:
            save(checkpoints, 1, state)
            checkpoints.wait()
            make_read_only()
        save(checkpoints, 2, state)
        checkpoints.wait()
        printed = capsys.readouterr().out
        assert "warning: the checkpoint of round 2 cannot be written" in printed and len(printed.splitlines()) == 1
        assert make_read_only is None or "Read-only file system" in printed
        assert checkpoints.rounds() == ([] if make_read_only is None else [1])
