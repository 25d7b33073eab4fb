"""Flower: its simulation runtime on Ray, strategy FedAvg (with server momentum FedAvgM), PyTorch at the clients.

    python benchmarks/peers/flower_peer.py FOLDER --rounds R [--threads T]

Every client is a virtual SuperNode; there are as many workers as threads, each with one. `run_simulation` starts the
same runtime as the command `flwr run`. Most of a short round is waiting: the runtime looks for messages every 0.1 s.
"""

# mypy: ignore-errors

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable

import common
import flower_client
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvgM
from flwr.simulation import run_simulation
from torch_models import Classifier


class Strategy(FedAvgM):
    """FedAvg(M) on the workload's cohorts instead of drawn ones, with a stopwatch."""

    def __init__(self, work: common.Workload, folder: str, grid: Grid) -> None:
        meta = work.meta
        super().__init__(
            fraction_evaluate=0.0,
            server_learning_rate=meta.server_learning_rate,
            server_momentum=meta.server_momentum,
        )
        self.work, self.folder = work, folder
        while len(nodes := sorted(grid.get_node_ids())) < meta.num_clients:
            time.sleep(0.1)
        self.nodes = nodes
        self.losses: list[float] = []
        self.watch = common.Stopwatch()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if self.current_arrays is None:
            self.current_arrays = arrays
        messages, round = [], server_round - 1
        for slot, client in enumerate(self.work.cohorts[round]):
            config = ConfigRecord({"folder": self.folder, "round": round, "slot": slot})
            content = RecordDict({"arrays": arrays, "config": config})
            messages.append(Message(content, dst_node_id=self.nodes[client], message_type=MessageType.TRAIN))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(reply.error.reason)
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.watch.lap()
        self.losses.append(metrics["loss"])
        return arrays, metrics


def main() -> None:
    flags = common.flags(__doc__, ["ray"])
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    logging.getLogger("flwr").setLevel(logging.WARNING)
    torch.set_num_threads(flags.threads)
    work = common.read(flags.folder)
    server, done = ServerApp(), []

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        grid.pull_interval = 0.01  # seconds; 0.1 if left alone
        strategy = Strategy(work, str(flags.folder.resolve()), grid)
        strategy.start(grid, ArrayRecord(Classifier(work).state_dict()), num_rounds=flags.rounds)
        done.append(strategy)

    run_simulation(
        server_app=server,
        client_app=flower_client.app,
        num_supernodes=work.meta.num_clients,
        backend_config={
            "init_args": {"num_cpus": flags.threads},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    common.report("flower", "flwr", flags, done[0].watch, done[0].losses)


if __name__ == "__main__":
    main()
