"""ImageNet-21k: 14 million photographs of 21,843 concepts, in a folder for each concept (synset).

Deng et al., ImageNet: a large-scale hierarchical image database, CVPR 2009. It has no test part: as in the paper, a
fifth of every class is held out.
"""

from __future__ import annotations

import numpy as np

from fedss_jax.data.assemble import assemble, by_label, data_folder
from fedss_jax.data.cache import cache_folder
from fedss_jax.data.index import Files, Index, Part
from fedss_jax.data.listing import list_pictures, listing_notes, sub_folders
from fedss_jax.types import UserError

TEST_SHARE = 0.2  # the paper's


def index(*, split: str, root: str, num_clients: int, labels_per_client: int, seed: int, cache_dir: str) -> Index:
    """Classification, on unseen pictures of all classes.

    root: the folder with the synsets' folders, such as n01440764.
    num_clients, labels_per_client: 25,691 of 20 labels in the paper, then of about 400 pictures. 0 clients for the
    fewest that hold all classes.
    """
    folder = data_folder(root, "the folder with a folder of pictures for each synset, such as n01440764")
    synsets = sub_folders(folder)
    if not synsets:
        raise UserError(f"data.root {root!r} has no folders; unpack each synset's archive into a folder of its own")
    listing = list_pictures(folder, synsets, cache_folder(cache_dir))
    notes = listing_notes(synsets, listing)
    if np.sum(listing.pictures == 0) > len(synsets) / 2:
        raise UserError(
            f"of the {len(synsets)} folders in data.root {root!r} most have no pictures right in them"
            f" ({'; '.join(notes)}); set it to the folder with the synsets' folders"
        )
    labels = np.repeat(np.arange(len(synsets), dtype=np.int32), listing.pictures)
    return assemble(
        Files(folder, listing.names),
        Part(np.arange(len(labels)), labels),
        None,
        task="classification",
        split=split,
        seed=seed,
        deal=by_label(num_clients, labels_per_client, seed),
        test_share=TEST_SHARE,
        names=synsets,
        notes=notes,
    )
