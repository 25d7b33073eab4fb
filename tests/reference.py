"""Algorithm 1 of the paper in NumPy float64: loops, no vmap, no autodiff, one client and one example at a time.

It shares with the engine only the random draws (who takes part, which negatives, in which order), whose distribution
has tests of its own. The encoder is linear: f(x) = x A.
"""

from __future__ import annotations

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from fedss_jax import sampling
from fedss_jax.client import FAULTS, NEGATIVES, SHUFFLE
from fedss_jax.faults import NO_FAULTS


@cache
def jitted(function, *static):
    return jax.jit(function, static_argnums=static)


def draw_cohort(root, t, population, K):
    key = sampling.client_key(root, jnp.asarray(t), jnp.asarray(population))
    return [int(k) for k in jitted(sampling.cohort, 1, 2)(key, population, K)]


def draw_order(key, epoch, count, most):
    key = jax.random.fold_in(jax.random.fold_in(key, SHUFFLE), epoch)
    return [int(i) for i in jitted(sampling.shuffled, 2)(key, count, most)[:count]]


def draw_negatives(key, positives, n, count):
    key = jax.random.fold_in(key, NEGATIVES)
    padded = jnp.asarray(positives + [n] * (n - len(positives)))
    return [int(j) for j in jitted(sampling.negatives, 3, 5)(key, padded, len(positives), n, count, n)[:count]]


def draw_faults(faults, root, t, members, sizes, mean, K):
    """Who reports in time, and what each client's update is multiplied by: [chosen] each."""

    def draw(t, members, sizes):
        keys = jax.vmap(lambda k: jax.random.fold_in(sampling.client_key(root, t, k), FAULTS))(members)
        return faults.turnout(keys, sizes, mean, K).reports, faults.spoil(keys)

    return map(np.asarray, jax.jit(draw)(jnp.asarray(t), jnp.asarray(members), jnp.asarray(sizes)))


def unit(v: np.ndarray) -> np.ndarray:
    return v / np.linalg.norm(v)


def through_unit(v: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """The gradient with respect to v, given the one with respect to v / |v|."""
    u = unit(v)
    return (gradient - u * (u @ gradient)) / np.linalg.norm(v)


def example_gradient(A, W, x, target, competing, correction, scale):
    """Loss of one example, and its gradient for A and for each row of W that takes part.

    competing: the classes in the log-sum; correction: class -> what is subtracted from its logit.
    """
    f = x @ A
    logit = {j: scale * unit(f) @ unit(W[j]) - correction.get(j, 0.0) for j in {*competing, target}}
    total = sum(math.exp(o) for o in logit.values())
    loss = -logit[target] + math.log(total)
    on_unit_f = np.zeros_like(f)
    rows = {}
    for j, o in logit.items():
        slope = scale * (math.exp(o) / total - (j == target))
        on_unit_f += slope * unit(W[j])
        rows[j] = through_unit(W[j], slope * unit(f))
    return loss, np.outer(x, through_unit(f, on_unit_f)), rows


def batch_step(A, W, batch, competing, correction, scale, learning_rate):
    """One SGD step on the mean loss of a batch of (x, target)."""
    new_A, new_W, loss = A.copy(), W.copy(), 0.0
    for x, target in batch:
        one, dA, rows = example_gradient(A, W, x, target, competing, correction, scale)
        loss += one
        new_A -= learning_rate * dA / len(batch)
        for j, row in rows.items():
            new_W[j] -= learning_rate * row / len(batch)
    return new_A, new_W, loss


def choose_classes(method, positives, key, n, m, extra_negatives, correct_logits):
    """What a client requests, what competes in its loss, and the corrections of its logits."""
    if method == "fullsoftmax":
        return list(range(n)), list(range(n)), {}
    if method in ("posonly", "fedaws"):
        return positives, positives, {}
    count = m + (len(positives) - 1 if extra_negatives else 0)
    negatives = draw_negatives(key, positives, n, count)
    log_inclusion = math.log(count / (n - len(positives)))
    correction = dict.fromkeys(negatives, log_inclusion) if correct_logits else {}
    competing = negatives if method == "negonly" else positives + negatives
    return positives + negatives, competing, correction


def spreadout(W, margin, step, pairs):
    """One gradient step on the sum over (c, c') of max(0, margin - (1 - cos))^2."""
    gradient = np.zeros_like(W)
    for c, other in pairs:
        close = max(0.0, margin - 1 + unit(W[c]) @ unit(W[other]))
        gradient[c] += through_unit(W[c], 2 * close * unit(W[other]))
        gradient[other] += through_unit(W[other], 2 * close * unit(W[c]))
    return W - step * gradient


def run(
    method,
    A,
    W,
    dataset,
    root,
    *,
    rounds,
    K,
    m=5,
    epochs=1,
    batch_size=4,
    learning_rate=0.1,
    scale=20.0,
    server_lr=1.0,
    momentum=0.9,
    row_weighting="cohort",
    extra_negatives=False,
    correct_logits=True,
    margin=0.5,
    spreadout_step=0.1,
    faults=NO_FAULTS,
    clip_norm=math.inf,
):
    """Rounds of any federated method. Returns A, W and each round's mean training loss; None where no update counts."""
    A, W = np.asarray(A, np.float64), np.asarray(W, np.float64)
    n = len(W)
    velocity_A, velocity_W, mean_losses = np.zeros_like(A), np.zeros_like(W), []
    for t in range(rounds):
        clients = dataset.clients
        members = draw_cohort(root, t, len(clients), faults.chosen(K))
        sizes = [len(clients[k]) for k in members]
        reports, factors = draw_faults(faults, root, t, members, sizes, np.mean([len(c) for c in clients]), K)
        total = 0
        sum_A, sum_W, holders = np.zeros_like(A), np.zeros_like(W), np.zeros(n)
        loss, seen = 0.0, 0
        for k, factor in zip(np.array(members)[reports].tolist(), factors[reports].tolist()):
            examples = clients[k]
            n_k = len(examples)
            key = sampling.client_key(root, jnp.asarray(t), jnp.asarray(k))
            positives = sorted({int(dataset.train.labels[i]) for i in examples})
            requested, competing, correction = choose_classes(
                method, positives, key, n, m, extra_negatives, correct_logits
            )
            local_A, local_W, local_loss = A.copy(), W.copy(), 0.0
            for epoch in range(epochs):
                order = draw_order(key, epoch, n_k, max(map(len, clients)))
                for start in range(0, n_k, batch_size):
                    chosen = [examples[i] for i in order[start : start + batch_size]]
                    batch = [(dataset.train.images[i].astype(np.float64), int(dataset.train.labels[i])) for i in chosen]
                    local_A, local_W, batch_loss = batch_step(
                        local_A, local_W, batch, competing, correction, scale, learning_rate
                    )
                    local_loss += batch_loss
            update_A, update_W = factor * (A - local_A), {j: factor * (W[j] - local_W[j]) for j in requested}
            norm = math.sqrt((update_A**2).sum() + sum((row**2).sum() for row in update_W.values()))
            if not math.isfinite(norm):
                continue
            shortened = min(1.0, clip_norm / norm) if norm else 1.0
            loss, seen, total = loss + local_loss, seen + epochs * n_k, total + n_k
            sum_A += n_k * shortened * update_A
            for j in requested:
                sum_W[j] += n_k * shortened * update_W[j]
                holders[j] += n_k
        if not total:
            mean_losses.append(None)
            continue
        divisor = np.full(n, total) if row_weighting == "cohort" else np.maximum(holders, 1)
        velocity_A = momentum * velocity_A + sum_A / total
        velocity_W = momentum * velocity_W + sum_W / divisor[:, None]
        A, W = A - server_lr * velocity_A, W - server_lr * velocity_W
        if method == "fedaws":
            pairs = [(c, other) for c in range(n) for other in range(n) if c != other]
            W = spreadout(W, margin, spreadout_step, pairs)
        mean_losses.append(loss / seen)
    return A, W, mean_losses
