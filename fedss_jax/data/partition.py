"""Who holds what: ways to deal examples out to clients, and the padded arrays that the engine works on."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fedss_jax.types import Clients, Dataset, UserError


def equal_clients(labels: np.ndarray, classes_per_client: int, seed: int) -> list[np.ndarray]:
    """Clients of so many classes each, drawn at random; a client holds all examples of its classes."""
    classes = np.random.default_rng(seed).permutation(np.unique(labels))
    by_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels))[:-1])
    return [
        np.sort(np.concatenate([by_class[c] for c in classes[start : start + classes_per_client]]))
        for start in range(0, len(classes), classes_per_client)
    ]


def dealt_clients(labels: np.ndarray, num_clients: int, labels_per_client: int, seed: int) -> list[np.ndarray]:
    """Just so many clients of just so many labels each, and of sizes as equal as they come; every example is dealt.

    A class is cut into one or more portions, large classes into more, so that the portions are num_clients *
    labels_per_client in all; every client gets portions of different classes. Portions are dealt largest first, each
    time to whoever holds least.

    num_clients: 0 for the fewest that can hold all classes: hardly any class is then at two clients.
    labels_per_client: 0 for a tenth of the classes, at most 20.
    """
    classes, sizes = np.unique(labels, return_counts=True)
    labels_per_client = labels_per_client or min(20, -(-len(classes) // 10))
    num_clients = num_clients or -(-len(classes) // max(labels_per_client, 1))
    portions = _portions(sizes, num_clients, labels_per_client)
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]  # by class, and in random order within it

    first = np.repeat(np.cumsum(sizes) - sizes, portions)
    cuts = first + _within(portions) * np.repeat(sizes, portions) // np.repeat(portions, portions)
    lengths = np.diff(np.append(cuts, len(labels)))
    holder = _deal(lengths, np.repeat(np.arange(len(classes)), portions), num_clients, seed)
    owner = np.repeat(holder, lengths)
    by_owner = order[np.argsort(owner, kind="stable")]
    ends = np.cumsum(np.bincount(owner, minlength=num_clients))[:-1]
    return [np.sort(held) for held in np.split(by_owner, ends)]


def _within(counts: np.ndarray) -> np.ndarray:
    """[2, 3] -> [0, 1, 0, 1, 2]."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _portions(sizes: np.ndarray, num_clients: int, labels_per_client: int) -> np.ndarray:
    """Into how many portions each class is cut: at least one, at most one a client or an example, as near as possible
    in proportion to its size, num_clients * labels_per_client in all.
    """
    _check_fit(sizes, num_clients, labels_per_client)
    wanted, most = num_clients * labels_per_client, np.minimum(sizes, num_clients)

    def cut(size: float) -> np.ndarray:
        return np.clip(sizes / size, 1, most)

    low, high = 1e-9, float(sizes.max())  # the portion's size, found by halving; smaller gives more portions
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if cut(middle).sum() > wanted else (low, middle)
    exact = cut(high)
    portions = np.floor(exact).astype(np.int64)
    missing = wanted - portions.sum()
    # Rounded so that the sum comes out: those nearest to one more get it, where they can be cut further.
    nearest = np.argsort(np.where(portions < most, portions - exact, np.inf), kind="stable")[:missing]
    portions[nearest] += 1
    return portions


def _check_fit(sizes: np.ndarray, num_clients: int, labels_per_client: int) -> None:
    """Whether classes of these sizes can be dealt out to so many clients of so many labels."""
    if num_clients < 1 or labels_per_client < 1:
        name, value = ("labels_per_client", labels_per_client) if num_clients > 0 else ("num_clients", num_clients)
        raise UserError(f"data.{name} is {value}; it must be at least 0, which stands for what fits")
    classes, wanted = len(sizes), num_clients * labels_per_client
    possible = int(np.minimum(sizes, num_clients).sum())  # a class at most once at a client, and never an empty portion
    if labels_per_client > classes:
        raise UserError(
            f"data.labels_per_client is {labels_per_client}, but there are {classes} training classes; lower it"
        )
    if wanted < classes:
        raise UserError(
            f"{num_clients} clients of {labels_per_client} labels cannot hold all {classes} classes; raise"
            f" data.num_clients to {-(-classes // labels_per_client)} or data.labels_per_client to"
            f" {-(-classes // num_clients)}"
        )
    if wanted > possible:
        raise UserError(
            f"{num_clients} clients of {labels_per_client} labels need {wanted} portions of a class, but {classes}"
            f" classes with {sizes.sum()} examples can be cut into {possible}; lower data.num_clients or"
            " data.labels_per_client"
        )


def _deal(lengths: np.ndarray, classes: np.ndarray, num_clients: int, seed: int) -> np.ndarray:
    """The client that gets each portion, never two of one class.

    In rows of num_clients portions, one for each client. Portions of a class stand together, so that it reaches into
    two rows at most.
    """
    class_length = np.bincount(classes, lengths) / np.bincount(classes)
    shuffled = np.random.default_rng((seed, 1)).permutation(len(class_length))  # ties in random order
    order = np.lexsort((shuffled[classes], -class_length[classes]))
    holder, load = np.empty(len(lengths), np.int64), np.zeros(num_clients, np.int64)
    for start in range(0, len(order), num_clients):
        row = order[start : start + num_clients]
        ready = np.argsort(load, kind="stable")
        if start and classes[row[0]] == classes[order[start - 1]]:
            # The class goes on from the row before: who has it already waits.
            before = order[start - num_clients : start]
            has = np.isin(ready, holder[before[classes[before] == classes[row[0]]]])
            ready = np.concatenate([ready[~has], ready[has]])
        holder[row] = ready
        load[ready] += lengths[row]
    return holder


def natural_clients(owners: Sequence[str] | np.ndarray) -> list[np.ndarray]:
    """One client for each distinct owner of examples, in the owners' alphabetical order."""
    _, inverse = np.unique(np.asarray(owners), return_inverse=True)
    return np.split(np.argsort(inverse, kind="stable"), np.cumsum(np.bincount(inverse))[:-1])


def make_population(dataset: Dataset) -> tuple[Clients, int]:
    """The clients as padded arrays, and how many were left out because they hold nothing."""
    labels, n = np.asarray(dataset.train.labels), dataset.num_classes
    held = [np.asarray(examples, np.int32) for examples in dataset.clients if len(examples)]
    positives = [np.unique(labels[examples]) for examples in held]
    clients = Clients(
        client_id=jnp.arange(len(held)),
        num_examples=_lengths(held),
        examples=_pad(held, 0),
        positives=_pad(positives, n),
        num_positives=_lengths(positives),
    )
    return clients, len(dataset.clients) - len(held)


def _lengths(arrays: Sequence[np.ndarray]) -> jax.Array:
    return jnp.array([len(a) for a in arrays], jnp.int32)


def _pad(arrays: Sequence[np.ndarray], fill: int) -> jax.Array:
    """Arrays of several lengths as the rows of one, filled up to the longest."""
    padded = np.full((len(arrays), max(len(a) for a in arrays)), fill, np.int32)
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = array
    return jnp.asarray(padded)
