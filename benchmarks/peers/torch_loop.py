"""The opponent without a framework: a loop over clients in PyTorch, as an expert would write it for speed.

    python benchmarks/peers/torch_loop.py FOLDER --rounds R [--threads T] [--variant V]

Variants: `rows` trains one client after the other, each on its own rows of W only, where it does not see all of them;
`full` hands every client all of W and trains with sparse gradients; `batched` trains all clients of a round at once by
torch.func.vmap; `processes` is `rows` in as many processes as threads, each with its share of the cohort.
"""

# mypy: ignore-errors

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import common
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor
from torch_models import Params, client_data, loss_function, parameters


@dataclasses.dataclass
class Share:
    """What some clients of a round hand in. Weights of all clients of a round add up to 1."""

    whole: list[Tensor]  # - sum of weight * theta_k, for parameters that all clients have whole
    rows: Tensor | None  # [clients, S, d] weight * (W[S_k] before - after)
    loss: Tensor  # [] summed over the examples of all local steps

    @classmethod
    def zeros(cls, trainer: Trainer, clients: int) -> Share:
        rows = torch.zeros(clients, trainer.classes.shape[-1], trainer.W.shape[1]) if trainer.by_rows else None
        return cls([torch.zeros_like(p) for p in trainer.whole], rows, torch.zeros(()))

    def tensors(self) -> list[Tensor]:
        return [*self.whole, self.loss, *([] if self.rows is None else [self.rows])]


class Trainer:
    """The server's parameters, and how clients train from them."""

    def __init__(self, work: common.Workload, by_rows: bool) -> None:
        self.work, self.meta = work, work.meta
        self.by_rows = by_rows and work.sampled
        self.theta: Params = parameters(work)
        self.W = self.theta["W"]
        self.names = [name for name in self.theta if not (self.by_rows and name == "W")]
        self.whole = [self.theta[name] for name in self.names]
        self.loss = loss_function(work)
        self.classes = torch.from_numpy(work.classes).long() if work.sampled else None

    def local(self) -> list[Tensor]:
        """Buffers for one client's parameters."""
        return [torch.empty_like(p).requires_grad_() for p in self.whole]

    def train(self, round: int, slots: Sequence[int], share: Share, local: list[Tensor]) -> None:
        """Clients one after the other."""
        for p in share.tensors():
            p.zero_()
        weight = 1.0 / self.meta.clients_per_round  # all have as many examples
        size = self.meta.batch_size
        for number, slot in enumerate(slots):
            x, targets, request = client_data(self.work, round, slot)
            classes = request.pop("classes", None)
            torch._foreach_copy_([p.detach() for p in local], self.whole)
            variables = local
            if self.by_rows:
                received = self.W[classes]
                variables = [*local, received.clone().requires_grad_()]
            params = dict(zip([*self.names, "W"], variables))
            whole = params["W"]
            for features, target in zip(x.split(size), targets.split(size)):
                if self.work.sampled and not self.by_rows:
                    params["W"] = F.embedding(classes, whole, sparse=True)
                loss = self.loss(params, features, target, **request)
                gradients = torch.autograd.grad(loss, variables)
                with torch.no_grad():
                    share.loss.add_(loss, alpha=len(target))
                    descend(variables, gradients, self.meta.learning_rate)
            with torch.no_grad():
                torch._foreach_add_(share.whole, local, alpha=-weight)
                if self.by_rows:
                    torch.sub(received, variables[-1], out=share.rows[number]).mul_(weight)

    def train_batched(self, round: int, share: Share) -> None:
        """All clients of a round at once."""
        clients, size = self.meta.clients_per_round, self.meta.batch_size
        data = [client_data(self.work, round, slot) for slot in range(clients)]
        x, targets = (torch.stack([client[part] for client in data]) for part in range(2))
        variables = [p.expand(clients, *p.shape).clone().requires_grad_() for p in self.whole]
        request = ()
        if self.by_rows:
            received = self.W[self.classes[round]]
            variables.append(received.clone().requires_grad_())
            request = (torch.stack([client[2]["log_inclusion"] for client in data]),)
        params = dict(zip([*self.names, "W"], variables))
        share.loss.zero_()
        for features, target in zip(x.split(size, dim=1), targets.split(size, dim=1)):
            losses = torch.vmap(self.loss)(params, features, target, *request).sum()
            gradients = torch.autograd.grad(losses, variables)
            with torch.no_grad():
                share.loss.add_(losses, alpha=target.shape[1])
                descend(variables, gradients, self.meta.learning_rate)
        with torch.no_grad():
            for total, p in zip(share.whole, variables):
                torch.mean(p, dim=0, out=total).neg_()
            if self.by_rows:
                torch.sub(received, variables[-1], out=share.rows).div_(clients)


def descend(variables: list[Tensor], gradients: Sequence[Tensor], learning_rate: float) -> None:
    if any(gradient.is_sparse for gradient in gradients):
        for p, gradient in zip(variables, gradients):
            p.add_(gradient, alpha=-learning_rate)
    else:
        torch._foreach_add_(variables, gradients, alpha=-learning_rate)


class Server:
    """SGD with momentum. Velocities begin a round as momentum * velocity + theta, as shares bring -theta_k."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.meta = trainer, trainer.meta
        self.velocity = [torch.zeros_like(p) for p in trainer.whole]
        self.row_velocity = torch.zeros_like(trainer.W) if trainer.by_rows else None

    def step(self, round: int, shares: list[Share]) -> float:
        rate, momentum, theta = self.meta.server_learning_rate, self.meta.server_momentum, self.trainer.whole
        torch._foreach_mul_(self.velocity, momentum)
        torch._foreach_add_(self.velocity, theta)
        for share in shares:
            torch._foreach_add_(self.velocity, share.whole)
        torch._foreach_add_(theta, self.velocity, alpha=-rate)
        if self.trainer.by_rows:
            classes = self.trainer.classes[round].flatten()
            rows = torch.cat([share.rows for share in shares]).flatten(0, 1)
            self.row_velocity.mul_(momentum).index_add_(0, classes, rows)
            self.trainer.W.add_(self.row_velocity, alpha=-rate)
        examples = self.meta.clients_per_round * self.meta.examples_per_client
        return sum(float(share.loss) for share in shares) / examples


def worker(trainer: Trainer, slots: range, rounds: int, share: Share, barrier: mp.Barrier) -> None:
    local = trainer.local()
    barrier.wait()
    for round in range(rounds):
        barrier.wait()
        trainer.train(round, slots, share, local)
        barrier.wait()


def main() -> None:
    flags = common.flags(__doc__, ["rows", "full", "batched", "processes"])
    processes = flags.threads if flags.variant == "processes" else 1
    torch.set_num_threads(flags.threads // processes)
    trainer = Trainer(common.read(flags.folder), by_rows=flags.variant != "full")
    clients = trainer.meta.clients_per_round
    bounds = [clients * process // processes for process in range(processes + 1)]
    slots = [range(start, end) for start, end in itertools.pairwise(bounds)]
    shares = [Share.zeros(trainer, len(own)) for own in slots]
    barrier = mp.Barrier(processes)
    if processes > 1:
        for p in [*trainer.theta.values(), *(p for share in shares for p in share.tensors())]:
            p.share_memory_()
        for own, share in zip(slots[1:], shares[1:]):
            mp.Process(target=worker, args=(trainer, own, flags.rounds, share, barrier), daemon=True).start()
    server, local = Server(trainer), trainer.local()

    barrier.wait()
    watch, losses = common.Stopwatch(), []
    for round in range(flags.rounds):
        barrier.wait()
        if flags.variant == "batched":
            trainer.train_batched(round, shares[0])
        else:
            trainer.train(round, slots[0], shares[0], local)
        barrier.wait()
        losses.append(server.step(round, shares))
        watch.lap()
    common.report("torch", "torch", flags, watch, losses)


if __name__ == "__main__":
    main()
