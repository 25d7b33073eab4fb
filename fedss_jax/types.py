"""The few values that flow between modules.

Letters in shapes, here and everywhere: n classes, d embedding size, K clients of a cohort, E examples a client
(padded), P positives a client (padded), S classes a client requests (padded), B examples a batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

Params = Any  # a tree of arrays, as Flax gives it


class UserError(Exception):
    """Something the person at the keyboard can mend. The message is one line: value, limit, remedy."""

    def __init__(self, message: str):
        # A name from someone's disk may have a line's end in it.
        super().__init__("\\n".join(message.splitlines()))


class MissingData(UserError):
    """A data set that is not on this machine."""


class Theta(NamedTuple):
    """The paper's theta = (phi, W): a whole model, a client's sub-model, or a change of either."""

    encoder: Params
    class_matrix: jax.Array  # [n, d]: one row a class (the paper's columns); [S, d] at a client


class Model(NamedTuple):
    """An image encoder. `embed` returns unit vectors [B, d] in float32, whatever it computes in."""

    init: Callable[[jax.Array], Params]  # key -> phi
    embed: Callable[[Params, jax.Array], jax.Array]  # phi, images [B, H, W, C] -> [B, d]


class Clients(NamedTuple):
    """Who holds what, as padded arrays. The whole population, a cohort, or (unbatched) one client.

    Padding: `examples` past num_examples are 0; `positives` past num_positives are n, so that the array stays
    sorted.
    """

    client_id: jax.Array  # [K]
    num_examples: jax.Array  # [K]
    examples: jax.Array  # [K, E] rows of the store
    positives: jax.Array  # [K, P] the client's own classes, ascending
    num_positives: jax.Array  # [K]


class Resident(NamedTuple):
    """All stored training examples on every device: a round picks its own."""

    images: jax.Array  # [N, ...]

    def take(self, rows: jax.Array, places: jax.Array) -> jax.Array:
        """Examples by their rows in the store, or by their places in what is streamed; whichever this one knows."""
        return self.images[rows]

    def of_update(self, update: jax.Array) -> Resident:
        return self


class Streamed(NamedTuple):
    """Just the examples of one round, each client's on the device that trains it."""

    images: jax.Array  # federated [places, ...], the same number on every device; centralized [updates, B, ...]

    def take(self, rows: jax.Array, places: jax.Array) -> jax.Array:
        return self.images[places]

    def of_update(self, update: jax.Array) -> Streamed:
        """Of a centralized round's updates, one: [B, ...]."""
        return Streamed(self.images[update])


Stored = Resident | Streamed


class Transform(NamedTuple):
    """From an example as it is stored to what the encoder sees; on the device, one example at a time."""

    train: Callable[[jax.Array, jax.Array], jax.Array]  # key, stored [...] -> input [...]
    test: Callable[[jax.Array], jax.Array]


class ServerState(NamedTuple):
    round: jax.Array  # [] int32, rounds done
    steps: jax.Array  # [] int32, steps that the server took: in a round that nothing came of, it takes none
    encoder: Params
    opt_state: Any  # of the encoder's optimizer
    rows: Any  # W, and what its optimizer keeps of it: see rows.py
    bound: jax.Array | None = None  # [] on the length of updates, where it moves: see defence.py


class Images(Protocol):
    """Stored examples [N, ...]: an array, or something that reads or makes the rows it is asked for."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Rows by a slice or an array of row numbers of any shape. Called from several threads at once."""


@dataclasses.dataclass(frozen=True)
class Examples:
    images: Images  # [N, H, W, C] uint8, or [N, F] float32 for ready-made features
    labels: np.ndarray  # [N] int32
    names: Sequence[str] = ()  # what class 0, 1, ... is called; where there are none, by its number

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, label: int) -> str:
        return self.names[label] if self.names else str(label)


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Labelled images and who holds what.

    `task` says how `test` is scored: "retrieval" (its classes are its own, never seen in training) or
    "classification" (its classes are the training classes).
    """

    name: str
    task: str
    num_classes: int  # n: training labels are 0 .. n-1
    train: Examples
    clients: Sequence[np.ndarray]  # for each client, the rows of `train` that it holds
    test: Examples
    transform: Transform
