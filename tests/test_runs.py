"""Whole runs through every reader: from files in the exact layouts to a summary."""

from __future__ import annotations

import json

import layouts
import numpy as np
import pytest
from ml_collections import ConfigDict

from configs import arrays, folder, imagenet21k, landmarks, sop, tfds
from fedss_jax.train import train


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSS_CACHE", str(tmp_path / "cache"))


def shrink(config: ConfigDict) -> ConfigDict:
    """The same reader and method, with a small encoder on small pictures."""
    config.rounds, config.clients_per_round = 2, 2
    config.num_negatives = min(config.num_negatives, 1)
    config.client.batch_size, config.eval.every, config.eval.batch_size = 4, 2, 8
    config.init_from = ""
    if config.model.name != "linear":
        config.model.name = "small"
        config.model.options = ConfigDict({"layers": ((4, 4, 2),), "groups": 2})
    smaller = {"image_size": 12, "crop": 8, "workers": 1, "labels_per_client": 2, "num_clients": 4}
    config.data.update({key: value for key, value in smaller.items() if key in config.data})
    return config


def stanford_archive(tmp_path):
    config = sop.get_config()
    config.data.root = str(layouts.sop_archive(tmp_path / "sop"))
    return config


def stanford_prepared(tmp_path):
    config = sop.get_config()
    config.data.root = str(layouts.sop_prepared(tmp_path / "tfds", layouts.sop_archive(tmp_path / "sop")))
    return config


def landmarks_flat(tmp_path):
    config = landmarks.get_config()
    config.data.root = str(layouts.landmarks(tmp_path / "landmarks", classes=range(12)))
    return config


def landmarks_nested(tmp_path):
    config = landmarks.get_config("gld23k")
    config.data.root = str(layouts.landmarks(tmp_path / "landmarks", images="train", nested=True, classes=range(12)))
    return config


def synsets(tmp_path):
    config = imagenet21k.get_config()
    sizes = {"n01440764": 6, "n01443537": 5, "n02102040": 7, "n02979186": 5}
    config.data.root = str(layouts.class_folders(tmp_path / "imagenet", sizes, ".JPEG"))
    return config


def own_folders(tmp_path):
    config = folder.get_config("retrieval")
    config.data.root = str(layouts.class_folders(tmp_path / "own", {f"class {i}": 4 for i in range(8)}))
    return config


def own_table(tmp_path):
    config = folder.get_config()
    config.data.root, config.data.csv = str(tmp_path), str(layouts.client_table(tmp_path))
    config.num_negatives = 0  # its clients have pictures of all classes
    return config


def any_of_tfds(tmp_path):
    config = tfds.get_config()
    config.data.data_dir = str(layouts.shapes_prepared(tmp_path / "tfds").parent.parent)
    config.data.dataset = "shapes"
    return config


def own_features(tmp_path):
    config = arrays.get_config()
    rng = np.random.default_rng(0)
    labels, clients = np.arange(40) // 4, np.arange(40) // 8
    np.savez(tmp_path / "train.npz", features=rng.normal(size=(40, 6)), labels=labels, clients=clients)
    config.data.train = str(tmp_path / "train.npz")
    return config


def own_images(tmp_path):
    config = arrays.get_config("images")
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8), np.uint8)
    np.savez(tmp_path / "train.npz", images=images, labels=np.arange(40) % 8)
    config.data.train, config.data.shift, config.data.flip = str(tmp_path / "train.npz"), 1, True
    return config


READERS = (
    stanford_archive,
    stanford_prepared,
    landmarks_flat,
    landmarks_nested,
    synsets,
    own_folders,
    own_table,
    any_of_tfds,
    own_features,
    own_images,
)


@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("make", READERS, ids=lambda make: make.__name__)
def test_a_run_through_every_reader(make, tmp_path):
    summary = train(shrink(make(tmp_path)), str(tmp_path / "run"))
    assert np.isfinite(summary["final"]["train/loss"])
    assert (tmp_path / "run" / "encoder.safetensors").stat().st_size > 100


def test_readers_and_residencies_give_one_result(tmp_path):
    """The archive and what TFDS made of it, from the device, from memory and from disk: the same numbers."""
    results = []
    for make, residency in (
        (stanford_archive, "device"),
        (stanford_archive, "host"),
        (stanford_prepared, "disk"),
    ):
        config = shrink(make(tmp_path))
        config.data.residency = residency
        workdir = tmp_path / f"{make.__name__}-{residency}"
        summary = train(config, str(workdir))
        assert summary["residency"] == residency
        lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
        results.append({(line["round"], key): value for line in lines for key, value in line.items()})
    for other in results[1:]:
        assert other == pytest.approx(results[0], rel=1e-5)


def test_a_run_starts_from_the_encoder_of_another(tmp_path, one_device, capsys):
    config = shrink(stanford_archive(tmp_path))
    train(config, str(tmp_path / "first"))
    config.init_from = str(tmp_path / "first" / "encoder.safetensors")
    second = train(config, str(tmp_path / "second"))
    config.init_from_head = False
    third = train(config, str(tmp_path / "third"))
    assert third["start"]["eval/map10"] not in (second["start"]["eval/map10"], second["final"]["eval/map10"])
    assert f"the encoder starts from {config.init_from}" in capsys.readouterr().out
    first = json.loads((tmp_path / "first" / "summary.json").read_text())
    # Retrieval looks at the encoder alone: the second run begins where the first ended.
    assert second["start"]["eval/map10"] == first["final"]["eval/map10"] != first["start"]["eval/map10"]


def test_the_example_of_the_documentation_runs_as_it_is_printed(tmp_path, one_device):
    """Two classes, and nothing set but the root: all else must fit itself to the data."""
    config = folder.get_config()
    config.data.root = str(layouts.class_folders(tmp_path / "photos", {"oak": 6, "pine": 5}))
    config.rounds, config.eval.batch_size, config.data.image_size, config.data.crop = 1, 8, 12, 8
    config.model.name, config.model.options = "small", ConfigDict({"layers": ((4, 4, 2),), "groups": 2})
    assert train(config, str(tmp_path / "run"))["final"]["comm/classes"] == 2  # its own class, and the other
