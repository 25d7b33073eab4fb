"""What a run has learnt, for others to use: --mode=export."""

from __future__ import annotations

import json
from pathlib import Path

from fedss_jax import weights
from fedss_jax.evaluate.class_rows import class_matrix
from fedss_jax.finished import restore
from fedss_jax.metrics import say, writable


def export(workdir: str, which: str, folder: str) -> None:
    """Writes encoder.safetensors and class_matrix.safetensors. which: checkpoint to take, last, best or its round."""
    setup, found = restore(Path(workdir), which)
    dataset = setup.dataset
    learnt = class_matrix(setup.server.rows, found.state.rows, found.state.steps)
    about = {
        "dataset": dataset.name,
        "task": dataset.task,
        "round": str(found.round),
        "scores": json.dumps(found.about["last"]),
        "config": setup.config.to_json(sort_keys=True),
    }
    names = {"classes": json.dumps(list(dataset.train.names), ensure_ascii=False)} if dataset.train.names else {}
    into = Path(folder or Path(workdir) / "export")
    with writable(into):
        into.mkdir(parents=True, exist_ok=True)
        weights.save(into / "encoder.safetensors", found.state.encoder, about)
        weights.write(
            into / "class_matrix.safetensors",
            {"class_matrix": learnt},
            {"format": "fedss_jax class matrix", **about, **names},
        )
    say(
        f"{into} has encoder.safetensors and class_matrix.safetensors, {list(learnt.shape)}, as they are after round"
        f" {found.round}"
    )
