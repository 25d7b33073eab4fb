"""--mode=eval: the scores of a run's encoder are those that the run ended with."""

from __future__ import annotations

import json

import numpy as np
import pytest
from ml_collections import ConfigDict

from configs import arrays
from fedss_jax.analysis import confusion, gradient_noise
from fedss_jax.score import score, score_run
from fedss_jax.train import train
from fedss_jax.types import UserError

pytestmark = pytest.mark.usefixtures("one_device")


def config_of(folder, task: str) -> ConfigDict:
    rng = np.random.default_rng(0)
    centres, labels = rng.normal(size=(12, 6)), np.repeat(np.arange(12), 8)
    features = centres[labels] + 0.3 * rng.normal(size=(len(labels), 6))
    np.savez(folder / "data.npz", features=features, labels=labels)
    config = arrays.get_config(task)
    config.data.train, config.data.labels_per_client = str(folder / "data.npz"), 3
    config.rounds, config.clients_per_round, config.num_negatives, config.model.dim = 3, 2, 2, 4
    return config


@pytest.mark.parametrize("task", ["classification", "retrieval"])
def test_a_run_is_scored_as_it_ended(task, tmp_path):
    config = config_of(tmp_path, task)
    final = train(config, str(tmp_path / "run"))["final"]
    config.init_from = str(tmp_path / "run" / "encoder.safetensors")
    scores = score(config, str(tmp_path / "eval"))
    assert scores == pytest.approx({name: final[name] for name in scores}, rel=1e-5)
    assert {"train/top1"} < scores.keys()
    embeddings, labels = (np.load(tmp_path / "eval" / f"{name}.npy") for name in ("embeddings", "labels"))
    assert embeddings.shape == (len(labels), 4) and embeddings.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, rtol=1e-5)
    names = json.loads((tmp_path / "eval" / "names.json").read_text())
    assert {int(label) for label in names} == set(labels.tolist())
    told = json.loads((tmp_path / "eval" / "eval.json").read_text())
    assert told["init_from"] == config.init_from and told["split"] == "test"

    assert score_run(str(tmp_path / "run"), "last", str(tmp_path / "last")) == scores
    np.testing.assert_array_equal(np.load(tmp_path / "last" / "embeddings.npy"), embeddings)
    assert json.loads((tmp_path / "last" / "eval.json").read_text())["round"] == 3

    (tmp_path / "run" / "class_matrix.npy").unlink()
    if task == "retrieval":  # it needs no classes
        assert score(config, str(tmp_path / "again")).keys() == scores.keys() - {"train/top1"}
    else:
        with pytest.raises(UserError, match=r"class_matrix.npy is not there; classification needs"):
            score(config, str(tmp_path / "again"))


def test_what_cannot_be_scored_is_one_line(tmp_path):
    config = config_of(tmp_path, "retrieval")
    with pytest.raises(UserError, match="init_from is not set; name an encoder"):
        score(config, str(tmp_path / "eval"))


def test_commands_answer_about_a_finished_run(tmp_path, capsys):
    """The analyses read a run back from its folder."""
    config = config_of(tmp_path, "classification")
    train(config, str(tmp_path / "run"))
    run = str(tmp_path / "run")
    capsys.readouterr()
    gradient_noise.main([run, "--negatives", "1", "3", "--batches", "2", "--size", "8", "--clients", "4"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and [line.split()[0] for line in lines[1:3]] == ["1", "3"]
    table = json.loads((tmp_path / "run" / "gradient_noise.json").read_text())
    assert [line["num_negatives"] for line in table] == [1, 3] and table[0]["encoder_relative"] > 0
    assert (tmp_path / "run" / "gradient_noise_relative.svg").read_text().startswith("<svg")
    confusion.main([run, "--client=1", "--all"])
    assert "client 1:" in capsys.readouterr().out and (tmp_path / "run" / "confusion.svg").exists()
    with pytest.raises(UserError, match="there is no client 99; clients are 0 to 3"):
        confusion.main([run, "--client=99"])
    with pytest.raises(UserError, match=r"nowhere is not the folder of a finished run"):
        confusion.main([str(tmp_path / "nowhere")])
