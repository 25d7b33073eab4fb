"""Pictures in a data set that TensorFlow Datasets prepared, read without TensorFlow.

Only files that allow access by number (array_record) can be read so. The library is imported when it is needed: most
sources do without.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedss_jax.data.cache import load_arrays, progress, short_digest, try_to_save
from fedss_jax.data.index import BadImage
from fedss_jax.types import UserError

FORMAT = 1  # raise it whenever a change of this module changes what `columns` keeps


def one_line(error: BaseException) -> str:
    """The first line of what may be a page."""
    return str(error).strip().split("\n")[0][:300] or type(error).__name__


def find_prepared(dataset: str, data_dir: str) -> Path | None:
    """Where a data set such as "cifar10", "name:1.0.0" or "name/config" lies, prepared; None if it does not.

    data_dir: "" for the library's own folder.
    """
    from tensorflow_datasets.core import read_only_builder

    options = {"data_dir": Path(data_dir).expanduser()} if data_dir else {}
    try:
        return Path(read_only_builder.builder_from_files(dataset, **options).data_dir)
    except Exception:  # it raises several kinds for what is not there, whatever the reason
        return None


def prepare(dataset: str, data_dir: str) -> Path:
    """Lets the library download a data set and prepare it."""
    import tensorflow_datasets as tfds

    try:
        options = {"data_dir": Path(data_dir).expanduser()} if data_dir else {}
        builder = tfds.builder(dataset, file_format="array_record", **options)
    except Exception as error:
        raise UserError(f"TensorFlow Datasets does not know {dataset!r}: {one_line(error)}") from None
    try:
        builder.download_and_prepare()
    except Exception as error:  # no network, no TensorFlow, no disk, a changed checksum ...
        raise UserError(
            f"TensorFlow Datasets cannot prepare {dataset!r} ({type(error).__name__}: {one_line(error)}); it needs a"
            " network, and most data sets need pip install tensorflow importlib_resources"
        ) from None
    return Path(builder.data_dir)


@dataclasses.dataclass(frozen=True)
class Records:
    """Pictures of a prepared data set. May be read from several threads, and from other processes."""

    directory: Path
    splits: tuple[str, ...]  # one after the other, such as ("train", "test")
    image_key: str
    numbers: np.ndarray  # [N] the record of each picture, counted through all splits

    def __len__(self) -> int:
        return len(self.numbers)

    def name(self, row: int) -> str:
        split, number = self._find(row)
        return f"{self.directory.parent.name} {self.splits[split]} record {number}"

    def read(self, row: int) -> bytes:
        split, number = self._find(row)
        try:
            return self._sources[split][number][self.image_key]
        except Exception as error:  # whatever a damaged file makes the reader raise
            raise BadImage(f"cannot be read ({one_line(error)})") from None

    def take(self, rows: np.ndarray) -> Records:
        """The pictures of these rows, in this order."""
        return dataclasses.replace(self, numbers=self.numbers[rows])

    def fingerprint(self) -> str:
        numbers = hashlib.blake2b(self.numbers.astype(np.int64).tobytes()).hexdigest()
        return short_digest(self._files(), self.splits, self.image_key, numbers)

    def lengths(self) -> list[int]:
        """How many records each split has."""
        return [len(source) for source in self._sources]

    def columns(self, keys: Sequence[str], cache: Path) -> dict[str, np.ndarray]:
        """Values of all records by their keys, each [N]: numbers, or bytes. Of a picture, its digest.

        All records are read for it, once: the result is kept.
        """
        file = cache / f"records-{short_digest(FORMAT, self.fingerprint(), tuple(keys))}.npz"
        stored = load_arrays(file)
        if stored is None:
            self._check_keys(keys)
            found: dict[str, list[Any]] = {key: [] for key in keys}
            for row in progress(range(len(self)), f"reading {self.directory.parent.name}", "record", cache):
                split, number = self._find(row)
                try:
                    record = self._sources[split][number]
                except Exception as error:
                    raise UserError(
                        f"{self.name(row)} in {self.directory} cannot be read: {one_line(error)}; prepare it again"
                    ) from None
                for key in keys:
                    found[key].append(digest(record[key]) if key == self.image_key else _plain(record[key]))
            stored = {key: np.array(values) for key, values in found.items()}
            try_to_save(file, **{f"column{i}": stored[key] for i, key in enumerate(keys)})
            return stored
        return {key: stored[f"column{i}"] for i, key in enumerate(keys)}

    def _check_keys(self, keys: Sequence[str]) -> None:
        known = list(open_builder(self.directory).info.features)
        for key in keys:
            if key not in known:
                raise UserError(
                    f"the data set in {self.directory} has no {key!r} in its records, only {', '.join(known)}; correct"
                    " data.root or the key"
                )

    def _find(self, row: int) -> tuple[int, int]:
        """The split, and the number in it."""
        number = int(self.numbers[row])
        for split, source in enumerate(self._sources):
            if number < len(source):
                return split, number
            number -= len(source)
        raise IndexError(row)

    @functools.cached_property
    def _sources(self) -> list[Any]:
        # Opened when first read, and shared with processes that are forked later: a fork that opened the files anew
        # would wait forever for reader threads that only its parent has.
        return [open_split(self.directory, split, self.image_key) for split in self.splits]

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_sources"}

    def _files(self) -> list[object]:
        """What changes when the data set is prepared anew."""
        try:
            described = [(self.directory / name).read_bytes() for name in ("dataset_info.json", "features.json")]
            return [*described, *sorted((path.name, path.stat().st_size) for path in self.directory.iterdir())]
        except OSError as error:
            raise UserError(f"cannot read {error.filename}: {error.strerror}; prepare the data set again") from None


def open_records(directory: Path, splits: Sequence[str], image_key: str) -> Records:
    """All pictures of these splits, in the order of the files."""
    records = Records(directory, tuple(splits), image_key, np.empty(0, np.int64))
    return dataclasses.replace(records, numbers=np.arange(sum(records.lengths())))


def open_builder(directory: Path) -> Any:
    import tensorflow_datasets as tfds

    try:
        return tfds.builder_from_directory(directory)
    except Exception as error:
        raise UserError(f"{directory} is no prepared data set: {one_line(error)}; prepare it again") from None


def open_split(directory: Path, split: str, image_key: str) -> Any:
    """The records of a split, by their numbers: dictionaries. Pictures are left as they are encoded."""
    import tensorflow_datasets as tfds

    builder = open_builder(directory)
    features = dict(builder.info.features.items())
    check_key(features, "image_key", image_key)
    pictures = [key for key, feature in features.items() if isinstance(feature, tfds.features.Image)]
    if image_key not in pictures:
        raise UserError(f"data.image_key is {image_key!r}, which is no picture; choose one of {', '.join(pictures)}")
    try:
        return builder.as_data_source(split=split, decoders=dict.fromkeys(pictures, tfds.decode.SkipDecoding()))
    except NotImplementedError:
        raise UserError(
            f"{directory} holds {builder.info.file_format.value} files, which only TensorFlow reads; prepare the data"
            " set with file_format='array_record' in another folder"
        ) from None
    except Exception as error:
        known = ", ".join(builder.info.splits) or "none"
        raise UserError(f"cannot read split {split!r} of {directory}: {one_line(error)}; its splits: {known}") from None


def check_key(features: dict[str, Any], option: str, key: str) -> None:
    if key not in features:
        raise UserError(f"data.{option} is {key!r}, which records do not have; choose one of {', '.join(features)}")


def digest(data: bytes) -> bytes:
    """32 hexadecimal digits that tell a picture from all others."""
    return hashlib.blake2b(data, digest_size=16).hexdigest().encode()


def _plain(value: Any) -> Any:
    """A label or an owner, as NumPy keeps it well."""
    return value.encode() if isinstance(value, str) else value
