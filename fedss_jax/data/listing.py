"""The picture files in a folder of class folders, however many: ImageNet-21k has 14 million.

Each class folder is listed once. What it holds is appended to a journal, so that a listing that was killed goes on
where it stopped; the finished list is an array of names on disk, mapped into memory. A later start looks at the
folders' times of change only, and lists those again that are new or have changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedss_jax.data.cache import alone, load_arrays, progress, save_arrays, short_digest
from fedss_jax.types import UserError

FORMAT = 1  # raise it whenever a change of this module changes the files
EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")  # in any case
COUNTS = ("mtime_ns", "pictures", "ignored", "nested", "width")


class Listing(NamedTuple):
    """What is in F folders. `names` are sorted within a folder; folders are in the order that was asked for."""

    names: np.ndarray  # [N] bytes, "folder/name"
    pictures: np.ndarray  # [F] how many of the names
    ignored: np.ndarray  # [F] files that are no pictures by their names
    nested: np.ndarray  # [F] folders in the folder, not searched


class _Folder(NamedTuple):
    """What is known of one folder."""

    mtime_ns: int
    pictures: int
    ignored: int
    nested: int
    width: int  # bytes of the longest "folder/name"
    place: int  # where its names begin: a row of the finished list, or (in_journal) a byte of the journal
    in_journal: bool


def sub_folders(root: Path, below: str = "") -> list[str]:
    """Folders in root/below as paths below root, "below/name"; without hidden ones."""
    found = []
    try:
        with os.scandir(root / below) as entries:
            for entry in entries:
                if entry.name.startswith(".") or not entry.is_dir():
                    continue
                if entry.is_symlink() and not Path(entry.path).resolve().is_relative_to(root.resolve()):
                    raise UserError(
                        f"folder {entry.path} is a link that leads outside the data folder; put the pictures themselves"
                        " there, or set data.root to a folder that holds both"
                    )
                found.append(f"{below}/{entry.name}" if below else entry.name)
    except OSError as error:
        raise UserError(f"cannot list {root / below}: {error.strerror or error}; correct data.root") from None
    return sorted(found)


def list_pictures(root: Path, folders: Sequence[str], cache: Path) -> Listing:
    """The pictures in these folders below root (not in folders below them)."""
    home = cache / f"listing-{short_digest(FORMAT, os.fsencode(root.resolve()))}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with alone(home, "listing the same pictures"):
            return _bring_up_to_date(root, folders, home)
    except OSError as error:
        raise UserError(
            f"cannot list the pictures below {root} or write the list to {home}: {error.strerror or error}"
            f" ({error.filename}); mend that, or set data.root and data.cache_dir to other folders"
        ) from None


def _bring_up_to_date(root: Path, folders: Sequence[str], home: Path) -> Listing:
    times = {folder: os.stat(root / folder).st_mtime_ns for folder in folders}
    known, names = _load_finished(home)
    finished = list(known)
    with (home / "journal").open("a+b") as journal:
        known |= _read_journal(journal)
        stale = [folder for folder in folders if folder not in known or known[folder].mtime_ns != times[folder]]
        for folder in progress(stale, "listing class folders", "folder", home):
            known[folder] = _list_folder(root, folder, journal)
        chosen = [known[folder] for folder in folders]
        # The finished list is made again if any folder was listed since, or is gone.
        if finished != list(folders) or any(one.in_journal for one in chosen):
            _check_any(root, chosen)
            names = _finish(home, folders, chosen, names, journal)
    return Listing(names, *(np.array([getattr(one, field) for one in chosen]) for field in Listing._fields[1:]))


def _list_folder(root: Path, folder: str, journal: Any) -> _Folder:
    """Lists one folder and writes it to the journal, a line of JSON."""
    names, ignored, nested = [], 0, 0
    mtime_ns = os.stat(root / folder).st_mtime_ns  # before: what changes from now on is noticed the next time
    with os.scandir(root / folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                nested += 1
            elif entry.name.lower().endswith(EXTENSIONS):
                names.append(entry.name)
            else:
                ignored += 1
    line = {"folder": folder, "mtime_ns": mtime_ns, "names": sorted(names), "ignored": ignored, "nested": nested}
    place = journal.seek(0, os.SEEK_END)
    journal.write(json.dumps(line).encode() + b"\n")
    journal.flush()
    return _from_journal(line, place)


def _from_journal(line: dict[str, Any], place: int) -> _Folder:
    width = max((len(name) for name in _paths(line)), default=0)
    return _Folder(line["mtime_ns"], len(line["names"]), line["ignored"], line["nested"], width, place, True)


def _paths(line: dict[str, Any]) -> list[bytes]:
    return [os.fsencode(f"{line['folder']}/{name}") for name in line["names"]]


def _read_journal(journal: Any) -> dict[str, _Folder]:
    """What earlier runs listed. Only places are kept, as the names may be many."""
    known, place = {}, journal.seek(0)
    for text in journal:
        if not text.endswith(b"\n"):
            journal.truncate(place)  # its process was killed while it wrote
            break
        with contextlib.suppress(ValueError, KeyError, TypeError):  # a damaged line: the folder is listed again
            line = json.loads(text)
            known[line["folder"]] = _from_journal(line, place)
        place += len(text)
    return known


def _check_any(root: Path, chosen: Sequence[_Folder]) -> None:
    if not sum(one.pictures for one in chosen):
        nested = sum(one.nested for one in chosen)
        found = f"{nested} folders and " if nested else ""
        raise UserError(
            f"the {len(chosen)} class folders in {root} hold {found}{sum(one.ignored for one in chosen)} other files,"
            f" but no pictures ({' '.join(EXTENSIONS)}); each class needs a folder with its pictures right in it"
        )


def _finish(
    home: Path, folders: Sequence[str], chosen: Sequence[_Folder], old_names: np.ndarray, journal: Any
) -> np.ndarray:
    """Writes the list of all names to one file, a folder at a time, and forgets the journal."""
    counts = {field: np.array([getattr(one, field) for one in chosen], np.int64) for field in COUNTS}
    total, width = int(counts["pictures"].sum()), int(counts["width"].max())
    part, digest, first = home / "names.part", hashlib.blake2b(digest_size=8), 0
    names = np.lib.format.open_memmap(part, "w+", np.dtype((np.bytes_, width)), (total,))
    for one in chosen:
        if one.in_journal:
            journal.seek(one.place)
            mine = np.array(_paths(json.loads(journal.readline())), names.dtype)
        else:
            mine = old_names[one.place : one.place + one.pictures].astype(names.dtype)
        names[first : first + one.pictures] = mine
        digest.update(mine.data)
        first += one.pictures
    names.flush()
    del names
    # Named after what is in it: a list that someone has open is never written over.
    file = f"names-{digest.hexdigest()}.npy"
    os.replace(part, home / file)
    encoded = np.array([os.fsencode(folder) for folder in folders])
    save_arrays(home / "folders.npz", folders=encoded, names_file=np.array(file), **counts)
    journal.truncate(0)
    for other in home.glob("names-*.npy"):
        if other.name != file:
            other.unlink()
    return np.load(home / file, mmap_mode="r")


def _load_finished(home: Path) -> tuple[dict[str, _Folder], np.ndarray]:
    """The folders of the finished list, in its order, and its names; nothing if there is none."""
    nothing: tuple[dict[str, _Folder], np.ndarray] = {}, np.empty(0, np.bytes_)
    stored = load_arrays(home / "folders.npz")
    if stored is None:
        return nothing
    try:
        names = np.load(home / str(stored["names_file"]), mmap_mode="r")
    except (OSError, ValueError):  # deleted or damaged
        return nothing
    first = np.cumsum(stored["pictures"]) - stored["pictures"]
    rows = zip(*(stored[field].tolist() for field in COUNTS), first.tolist())
    folders = map(os.fsdecode, stored["folders"].tolist())
    return {
        folder: _Folder(mtime_ns, pictures, ignored, nested, width, place, False)
        for folder, (mtime_ns, pictures, ignored, nested, width, place) in zip(folders, rows)
    }, names


def listing_notes(folders: Sequence[str], listing: Listing) -> list[str]:
    """What people should know of the files that were left out."""
    notes = []
    if ignored := int(listing.ignored.sum()):
        notes.append(f"{ignored} files were ignored, as their names do not end like a picture's")
    empty = np.flatnonzero(listing.pictures == 0)
    if len(empty):
        named = ", ".join(folders[i] for i in empty[:3]) + (", ..." if len(empty) > 3 else "")
        notes.append(f"{len(empty)} class folders without a picture were left out: {named}")
    if nested := int((listing.nested[empty] > 0).sum()):
        notes.append(f"{nested} of them have folders of their own, which are not searched")
    return notes
