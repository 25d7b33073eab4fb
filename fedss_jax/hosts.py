"""One run in several processes: on every host of a TPU pod, under SLURM, or wherever --coordinator says to meet.

All of them run the same program on devices that they have in common, so that all must decide alike: what a process
finds out by itself (free memory, the time that a round takes) is agreed on before it decides anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax._src import distributed
from jax.experimental import multihost_utils

from fedss_jax.types import UserError

LOST_SECONDS = 30.0  # without a sign of life, until a process counts as lost
END_SECONDS = 3600  # that the others wait for the last one to end
LINGER_SECONDS = 3.0  # that a process stays after an error, for the others to hear of it
ENDED = "fedss_jax/ended"  # where a process writes what ended it
ALIVE = "fedss_jax/alive"  # where each counts its signs of life
STOP = "fedss_jax/stop"  # where one writes that all should stop, and process 0 where


def _service() -> Any:
    """What tells processes of one another. JAX has no public name for it; Orbax, too, takes it from there."""
    return distributed.global_state.client


def is_first() -> bool:
    """Whether this process is the one that writes: the run's folder, and what is seen on the terminal."""
    return jax.process_index() == 0


def least(value: int) -> int:
    """The least of all processes' values."""
    if jax.process_count() == 1:
        return value
    # In two halves: JAX has 32 bits for a number.
    halves = np.array(divmod(value, 2**31), np.int32)
    return min(int(high) * 2**31 + int(low) for high, low in multihost_utils.process_allgather(halves))


def of_first(value: int) -> int:
    """What process 0 has."""
    return value if jax.process_count() == 1 else int(multihost_utils.broadcast_one_to_all(np.int32(value)))


class Stop:
    """Whether to stop, wherever one is told to: asked equally often by all processes, it gives all the same answers.

    Nothing goes over the devices for it, which would wait for the rounds under way. Process 0 hears who wants to stop
    and writes at which question all do: one that none can have come to yet, as nobody is further ahead of another than
    the dispatches that are not read.
    """

    def __init__(self, wanted: Callable[[], bool], ahead: int):
        """ahead: questions that a process may be before another."""
        self._wanted, self._ahead, self._asked = wanted, ahead, 0

    def __call__(self) -> bool:
        self._asked += 1
        if jax.process_count() == 1:
            return self._wanted()
        if self._wanted():
            _service().key_value_set(f"{STOP}/wanted", "1", allow_overwrite=True)
        if is_first() and _read(f"{STOP}/wanted") and not _read(f"{STOP}/at"):
            _service().key_value_set(f"{STOP}/at", str(self._asked + self._ahead + 1))
        at = _read(f"{STOP}/at")
        return bool(at) and self._asked >= int(at)


def _read(key: str) -> str:
    """What is written there; "" if nothing is."""
    try:
        return _service().key_value_try_get(key)
    except Exception:  # JAX has one kind for all that can go wrong
        return ""


def fingerprint(*parts: Any) -> str:
    """32 hex digits of arrays, or of what has a `repr`."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(np.ascontiguousarray(part).tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return digest.hexdigest()


def check_same(what: str, *parts: Any) -> None:
    """Raises unless all processes have the same. parts: arrays, or what has a `repr`."""
    if jax.process_count() == 1:
        return
    everyones = multihost_utils.process_allgather(np.frombuffer(bytes.fromhex(fingerprint(*parts)), np.int32))
    others = [process for process, one in enumerate(everyones) if (one != everyones[0]).any()]
    if others:
        raise UserError(
            f"process {', '.join(map(str, others))} has {what} other than process 0; start all of them with the same"
            " command, on the same data and versions"
        )


def wait_for_all(where: str) -> None:
    """However long one of them takes; one that is lost ends it. (What devices exchange must not wait for hours.)"""
    if jax.process_count() > 1:
        _service().wait_at_barrier(f"fedss_jax/{where}", 7 * 24 * 3600 * 1000)


@contextlib.contextmanager
def together(
    coordinator: str | None, num_processes: int | None, process_id: int | None, join_seconds: int
) -> Iterator[None]:
    """With the other processes, if there are any. What ends one ends all, each with a line that says why."""
    _join(coordinator, num_processes, process_id, join_seconds)
    if jax.process_count() == 1:
        yield
        return
    done = threading.Event()
    threading.Thread(target=_listen, args=(done,), daemon=True).start()
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(sys.stdout if is_first() else nowhere):
            yield
    except SystemExit:  # of all of them at the same place
        done.set()
        raise
    except BaseException as error:
        done.set()
        _end(error)
    done.set()


def _join(coordinator: str | None, num_processes: int | None, process_id: int | None, join_seconds: int) -> None:
    told = {"--coordinator": coordinator, "--num_processes": num_processes, "--process_id": process_id}
    missing = [flag for flag, value in told.items() if value is None]
    if len(missing) == len(told):
        if not _on_slurm() and not _on_tpu():
            return
    elif missing:
        raise UserError(f"{', '.join(missing)} is not set; --coordinator, --num_processes and --process_id go together")
    else:
        _check_told(str(coordinator), int(num_processes or 0), int(process_id or 0))

    def give_up() -> None:
        where = f"at {coordinator}" if coordinator else "where SLURM or the TPU's host says"
        _leave(
            f"error: the processes have not all met {where} within {join_seconds} seconds; see that all of them are"
            " started, with one --coordinator that all can reach, or raise --join_timeout"
        )

    # Else a process that is told to end (SIGTERM) would only take note of it.
    jax.config.update("jax_enable_preemption_service", False)
    # JAX would end the process with a stack of its own: it is given longer than the timer.
    timer = threading.Timer(join_seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            initialization_timeout=join_seconds + 60,
            shutdown_timeout_seconds=END_SECONDS,
        )
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"the processes cannot be joined ({str(error).splitlines()[0]}); say where to meet with --coordinator,"
            " --num_processes and --process_id"
        ) from None
    finally:
        timer.cancel()


def _check_told(coordinator: str, num_processes: int, process_id: int) -> None:
    _, colon, port = coordinator.rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 2**16:
        raise UserError(f"--coordinator is {coordinator!r}; it must be HOST:PORT, of process 0")
    if not 0 <= process_id < num_processes:
        raise UserError(f"--process_id is {process_id}; of {num_processes} processes it is 0 to {num_processes - 1}")


def _on_slurm() -> bool:
    """As one of several tasks of `srun`."""
    return int(os.environ.get("SLURM_NTASKS", 1)) > 1 and "SLURM_STEP_NODELIST" in os.environ


def _on_tpu() -> bool:
    """On a TPU's host: where JAX sees one when it is imported, it names it first, unless told otherwise."""
    return (getattr(jax.config, "jax_platforms", None) or "").startswith("tpu")


def _listen(done: threading.Event) -> None:
    """Ends this process when another writes that it has ended, or gives no more signs of life.

    JAX notices a lost process as well, later and with a stack of its own; it must when that was process 0.
    """
    signs: dict[str, tuple[str, float]] = {}  # of each process the last, and when it was first seen
    for beat in itertools.count():
        if done.wait(1.0):
            return
        with contextlib.suppress(Exception):  # process 0 is gone
            _service().key_value_set(f"{ALIVE}/{jax.process_index()}", str(beat), allow_overwrite=True)
            if is_first():
                now = time.monotonic()
                for name, sign in _service().key_value_dir_get(ALIVE):
                    if name not in signs or signs[name][0] != sign:
                        signs[name] = sign, now
                    elif now - signs[name][1] > LOST_SECONDS:
                        _tell(f"process {name.split('/')[-1]} was lost: no sign of life for {LOST_SECONDS:.0f} seconds")
        why = _why_another_ended()
        if why and not done.is_set():
            if is_first():  # the others hear of it through this process
                time.sleep(LINGER_SECONDS)
            _leave(f"error: {why}; start all of them again")


def _tell(why: str) -> None:
    with contextlib.suppress(Exception):  # one has already written
        _service().key_value_set(ENDED, why)


def _why_another_ended() -> str:
    return _read(ENDED)  # nothing, too, if process 0 is gone, which JAX notices by itself


def _end(error: BaseException) -> None:
    """Tells the others, then leaves without waiting for them."""
    if isinstance(error, UserError):
        told = f"error: {error}"
    elif isinstance(error, KeyboardInterrupt):
        told = "stopped"
    elif _is_lost_connection(error):
        # The other may be about to say why.
        time.sleep(LINGER_SECONDS / 2)
        reason = _why_another_ended() or f"another process was lost ({str(error).splitlines()[0]})"
        told = f"error: {reason}; start all of them again"
    else:
        told = "".join(traceback.format_exception(error)).rstrip()
    why = told.splitlines()[-1].removeprefix("error: ")
    _tell(f"process {jax.process_index()} has ended: {why}")
    print(told, file=sys.stderr, flush=True)
    time.sleep(LINGER_SECONDS)
    _leave("")


def _is_lost_connection(error: BaseException) -> bool:
    """Whether devices have lost sight of each other, as far as the libraries tell."""
    return isinstance(error, (ValueError, RuntimeError)) and any(
        name in str(error) for name in ("Gloo", "NCCL", "coordination service")
    )


def _leave(told: str) -> None:
    """At once: an orderly exit would wait for the other processes."""
    if told:
        print(told, file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(1)
