"""From an index of picture files to a data set: decode once, leave out what cannot be used, crop on the device."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedss_jax.data.augment import crop_and_flip
from fedss_jax.data.index import Index, Part, Pictures
from fedss_jax.data.splits import check_at_least, check_choice
from fedss_jax.data.store import BAD_PICTURES, Rows, build, store_folder
from fedss_jax.types import Dataset, Examples, UserError

log = logging.getLogger(__name__)

ON_BAD_IMAGE = ("skip", "stop")
NAMED = 3  # bad pictures named in a message; the file has them all


def load(
    index: Index,
    *,
    name: str,
    image_size: int,
    crop: int,
    flip: bool,
    on_bad_image: str,
    max_bad_share: float,
    cache_dir: str,
    workers: int,
) -> Dataset:
    """The index's pictures as uint8 [image_size, image_size, 3], and windows of them as float32 [crop, crop, 3].

    on_bad_image: "skip" leaves out pictures that are missing or damaged, up to a share of max_bad_share of all; "stop"
    refuses to go on.
    workers: threads that decode; 0 for one a core.
    """
    check_choice("data.on_bad_image", on_bad_image, ON_BAD_IMAGE)
    crop_and_flip(image_size, crop, flip)  # refuses what does not fit, before pictures are decoded
    check_at_least("workers", workers, 0)
    if not 0 <= max_bad_share <= 1:
        raise UserError(f"data.max_bad_share is {max_bad_share}; it is a share of all pictures, from 0 to 1")

    for note in index.notes:
        log.warning("%s: %s", name, note)
    images, ok, reasons = build(index.pictures, image_size, cache_dir, workers)
    if reasons:
        listed = store_folder(index.pictures, image_size, cache_dir) / BAD_PICTURES
        what = _describe(index.pictures, reasons, str(listed))
        share = len(reasons) / len(index.pictures)
        if on_bad_image == "stop":
            raise UserError(f"{what}; mend them, or set data.on_bad_image=skip to leave them out")
        if share > max_bad_share:
            raise UserError(
                f"{what}; that is {share:.2%} of all, more than data.max_bad_share, {max_bad_share:.2%}; see"
                " that the data set is all there, mend the pictures, or raise it"
            )
        log.warning("%s: left out: %s", name, what)

    return _dataset(index, images, ok, name=name, crop=crop, flip=flip)


def outline(index: Index, *, name: str, image_size: int, crop: int, flip: bool, **others: Any) -> Dataset:
    """What `load` gives if all pictures are good, without opening any: for who wants to know sizes only."""
    count = len(index.pictures)
    unopened = np.broadcast_to(np.zeros((), np.uint8), (count, image_size, image_size, 3))  # takes no memory
    return _dataset(index, unopened, np.ones(count, bool), name=name, crop=crop, flip=flip)


def _dataset(index: Index, images: np.ndarray, ok: np.ndarray, *, name: str, crop: int, flip: bool) -> Dataset:
    """images [N, size, size, 3] of all pictures; those that are not ok [N] are left out."""
    train, test = (_only(part, ok) for part in (index.train, index.test))
    return Dataset(
        name=name,
        task=index.task,
        num_classes=index.num_classes,  # also if a class has lost all its pictures: labels keep their meaning
        train=_examples(images, train, index.train_names),
        clients=_renumber(index.clients, ok[index.train.rows]),
        test=_examples(images, test, index.test_names),
        transform=crop_and_flip(images.shape[1], crop, flip),
    )


def _describe(pictures: Pictures, reasons: dict[int, str], listed: str) -> str:
    """How many pictures cannot be used, why, and the first of them."""
    kinds = Counter(reason.split(" (")[0] for reason in reasons.values())
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    first = ", ".join(f"{pictures.name(row)} ({reasons[row]})" for row in sorted(reasons)[:NAMED])
    more = ", ..." if len(reasons) > NAMED else ""
    return f"{len(reasons)} of {len(pictures)} pictures cannot be used ({counts}): {first}{more}; all are in {listed}"


def _only(part: Part, ok: np.ndarray) -> Part:
    """The pictures that can be used."""
    kept = ok[part.rows]
    return Part(part.rows[kept], part.labels[kept])


def _examples(images: np.ndarray, part: Part, names: Sequence[str]) -> Examples:
    return Examples(Rows(images, part.rows), part.labels.astype(np.int32), names)


def _renumber(clients: Sequence[np.ndarray], kept: np.ndarray) -> list[np.ndarray]:
    """What clients hold once only some examples are kept [N bool]; a client may be left with nothing."""
    place = np.cumsum(kept) - 1
    return [place[held[kept[held]]] for held in clients]
