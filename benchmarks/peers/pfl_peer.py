"""pfl: FederatedAveraging on a SimulatedBackend, PyTorch models, as in pfl's own benchmarks.

    python benchmarks/peers/pfl_peer.py FOLDER --rounds R [--threads T] [--variant V]

Variants: `processes` runs one process a thread under torchrun, which is how pfl spreads a cohort over a machine;
`threads` is one process whose operations use all threads.
"""

# mypy: ignore-errors

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings

import common
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module as get_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor
from torch_models import Classifier, client_data


class Module(Classifier):
    """With what pfl asks of a module, and a count of what it loses."""

    def __init__(self, work: common.Workload) -> None:
        super().__init__(work)
        self.total = torch.zeros(())  # losses of this round's local steps

    def loss(self, x: Tensor, targets: Tensor, **request: Tensor) -> Tensor:
        loss = super().loss(x, targets, **request)
        self.total.add_(loss.detach(), alpha=len(targets))
        return loss

    def metrics(self, *_: Tensor, **__: Tensor) -> dict[str, Weighted]:
        return {"none": Weighted(0, 1)}  # pfl evaluates in its first round whatever it is told: let it cost nothing


def users(work: common.Workload) -> FederatedDataset:
    """A data set that gives the workload's clients in their order, each with its examples in theirs."""
    rounds, clients = work.cohorts.shape
    following = iter([(round, slot) for round in range(rounds) for slot in range(clients)])

    def make(place: tuple[int, int]) -> Dataset:
        x, targets, request = client_data(work, *place)
        return Dataset((x, targets), train_kwargs=request)

    return FederatedDataset(make, lambda: next(following))


class Recorder(TrainingProcessCallback):
    def __init__(self, module: Module, examples: int) -> None:
        self.module, self.examples = module, examples
        self.losses: list[Tensor] = []

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.watch = common.Stopwatch()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.watch.lap()
        self.losses.append(self.module.total / self.examples)
        self.module.total.zero_()
        return False, Metrics()


def main() -> None:
    flags = common.flags(__doc__, ["processes", "threads"])
    spread = flags.variant == "processes" and flags.threads > 1
    if spread and "LOCAL_RANK" not in os.environ:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={flags.threads}"]
        os.execv(sys.executable, [sys.executable, *launcher, *sys.argv])
    torch.set_num_threads(1 if spread else flags.threads)
    warnings.simplefilter("ignore", FutureWarning)  # of PyTorch, on names that pfl uses

    work = common.read(flags.folder)
    meta = work.meta
    module = Module(work)
    model = PyTorchModel(
        model=module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(
            module.parameters(), meta.server_learning_rate, momentum=meta.server_momentum
        ),
    )
    data = users(work)
    backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()])
    recorder = Recorder(module, meta.clients_per_round * meta.examples_per_client)
    with contextlib.redirect_stdout(io.StringIO()):  # metrics of every round
        FederatedAveraging().run(
            algorithm_params=NNAlgorithmParams(
                central_num_iterations=flags.rounds,
                evaluation_frequency=flags.rounds + 1,
                train_cohort_size=meta.clients_per_round,
                val_cohort_size=0,
            ),
            backend=backend,
            model=model,
            model_train_params=NNTrainHyperParams(
                local_num_epochs=meta.epochs,
                local_learning_rate=meta.learning_rate,
                local_batch_size=meta.batch_size,
            ),
            model_eval_params=NNEvalHyperParams(local_batch_size=None),
            callbacks=[recorder],
            send_metrics_to_platform=False,
        )
    (losses,) = get_ops().distributed.all_reduce([torch.stack(recorder.losses)])
    if get_ops().distributed.global_rank == 0:
        common.report("pfl", "pfl", flags, recorder.watch, losses)


if __name__ == "__main__":
    main()
