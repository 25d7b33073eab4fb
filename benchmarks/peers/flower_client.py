"""The client's side of flower_peer.py: a module, so that Ray's workers import it once and keep what it has read."""

# mypy: ignore-errors

from __future__ import annotations

import functools
from pathlib import Path

import common
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch_models import Classifier, client_data

app = ClientApp()


@functools.cache
def prepared(folder: str) -> tuple[common.Workload, Classifier]:
    common.keep_memory()
    torch.set_num_threads(1)  # as many workers as cores
    work = common.read(Path(folder))
    return work, Classifier(work)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Local SGD of the slot-th client of a round."""
    config = message.content["config"]
    work, module = prepared(config["folder"])
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(module.parameters(), work.meta.learning_rate)
    x, targets, request = client_data(work, config["round"], config["slot"])
    total = 0.0
    for features, target in zip(x.split(work.meta.batch_size), targets.split(work.meta.batch_size)):
        optimizer.zero_grad()
        loss = module.loss(features, target, **request)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(target)
    metrics = MetricRecord({"loss": total / len(targets), "num-examples": len(targets)})
    arrays = ArrayRecord(module.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
