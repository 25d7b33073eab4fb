"""Keeps the devices busy: the next rounds are sent before the last are read, short ones several at a time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from fedss_jax import hosts
from fedss_jax.feed import Feed
from fedss_jax.round import Round, RoundStats
from fedss_jax.types import Clients, Resident, ServerState, Stored

MOST = 64  # rounds in one dispatch
SECONDS = (
    0.25  # that a dispatch should take: long against what the host needs for it, short for who watches or stops it
)
IN_FLIGHT = 2  # dispatches that are sent before the first is read

Inputs = tuple[jax.Array, Clients, jax.Array]  # labels, population, root key


def compile_rounds(
    kind: Round, state: ServerState, stored: Stored, inputs: Inputs, rounds_per_dispatch: int
) -> Callable[[], Callable[..., tuple[ServerState, RoundStats]]]:
    """Traces the program of a dispatch; what is returned compiles it. A call that would need another one is an error.

    All but the kind may be shapes and places. rounds_per_dispatch: 0 for as many as will do.
    """
    most = (rounds_per_dispatch or MOST) if isinstance(stored, Resident) else 1
    return kind.several(most, state).lower(np.int32(1), state, stored, *inputs).compile  # type: ignore[attr-defined]


class Dispatcher:
    """Runs rounds from a state on. `state` is that after the last round that was sent."""

    def __init__(
        self,
        run: Callable[..., tuple[ServerState, RoundStats]],
        state: ServerState,
        feed: Feed,
        inputs: Inputs,
        rounds_per_dispatch: int,
        *,
        done: int = 0,
        stop: Callable[[], bool] = lambda: False,
    ):
        """run: as compile_rounds gives it, for the same rounds_per_dispatch.

        done: rounds that the state has behind it. stop: asked before each dispatch; once it says so, none is sent any
        more, and those that were are read.
        """
        self.state, self.stopped = state, False
        self.seconds_waiting_for_data = 0.0
        self._run, self._feed, self._inputs = run, feed, inputs
        self._fixed = rounds_per_dispatch or (0 if feed.several_rounds else 1)
        self._count = self._fixed or 1  # rounds in the next dispatch
        self._sent, self._stop = done, stop
        self._pending: deque[tuple[int, RoundStats]] = deque()
        self._read_at = time.perf_counter()

    def run_to(self, until: int) -> Iterator[tuple[int, RoundStats]]:
        """Rounds up to number `until`, counted from 1, each with its stats, which are on the host."""
        self._read_at = time.perf_counter()
        while self._pending or (self._sent < until and not self.stopped):
            while self._sent < until and len(self._pending) < IN_FLIGHT and not self._stops():
                self._send(min(self._count, until - self._sent))
            if self._pending:
                yield from self._read()

    def _stops(self) -> bool:
        self.stopped = self.stopped or self._stop()
        return self.stopped

    def _send(self, count: int) -> None:
        asked = time.perf_counter()
        stored = self._feed.stored(self._sent)
        self.seconds_waiting_for_data += time.perf_counter() - asked
        # `stored` is let go of here: a streamed round's examples go as soon as it is done.
        self.state, stats = self._run(np.int32(count), self.state, stored, *self._inputs)
        self._sent += count
        self._pending.append((count, stats))

    def _read(self) -> Iterator[tuple[int, RoundStats]]:
        count, on_devices = self._pending.popleft()
        first = self._sent - sum(waiting for waiting, _ in self._pending) - count + 1
        stats: Any = jax.tree.map(np.asarray, on_devices)
        now = time.perf_counter()
        if not self._fixed:
            self._count = int(np.clip(SECONDS * count / (now - self._read_at), 1, MOST))
            if jax.process_count() > 1:  # all must send alike: the first that was read decides, once for all
                self._fixed = self._count = hosts.least(self._count)
        self._read_at = now
        for i in range(count):
            yield first + i, jax.tree.map(lambda numbers: numbers[i], stats)  # noqa: B023
