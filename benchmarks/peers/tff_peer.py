"""TensorFlow Federated: weighted federated averaging of a functional model, on its native C++ runtime.

    python benchmarks/peers/tff_peer.py FOLDER --rounds R [--threads T] [--variant V]

Variants are TFF's loops over a client's batches: `iterator`, or `reduce`, its own default but slower.
"""

# mypy: ignore-errors

from __future__ import annotations

import os
import signal
from collections import OrderedDict
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import common
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow import Tensor

Params = dict[str, Tensor]
LOOPS = {
    "iterator": tff.learning.LoopImplementation.DATASET_ITERATOR,
    "reduce": tff.learning.LoopImplementation.DATASET_REDUCE,
}


def lr(params: Params, x: Tensor) -> Tensor:
    return x


def cnn(params: Params, x: Tensor) -> Tensor:
    for name in ("conv1", "conv2"):
        x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, params[f"{name}.kernel"], 1, "VALID"), params[f"{name}.bias"]))
    x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    x = tf.reshape(x, [-1, params["fc.kernel"].shape[0]])
    return tf.nn.relu(tf.matmul(x, params["fc.kernel"]) + params["fc.bias"])


def head(params: Params, x: Tensor) -> Tensor:
    return tf.matmul(x, params["A"])


ENCODERS = {encoder.__name__: encoder for encoder in (lr, cnn, head)}


def unit(x: Tensor) -> Tensor:
    return x * tf.math.rsqrt(tf.reduce_sum(x * x, axis=-1, keepdims=True))


@tf.function
def no_loss() -> OrderedDict[str, Tensor]:
    return OrderedDict(total=tf.constant(0.0), examples=tf.constant(0.0))


@tf.function
def add_loss(
    state: OrderedDict[str, Tensor], labels: Tensor, batch_output: Any, sample_weight: Any = None
) -> OrderedDict[str, Tensor]:
    count = tf.cast(batch_output.num_examples, tf.float32)
    return OrderedDict(total=state["total"] + batch_output.loss * count, examples=state["examples"] + count)


@tf.function
def mean_loss(state: OrderedDict[str, Tensor]) -> OrderedDict[str, Tensor]:
    return OrderedDict(loss=state["total"] / state["examples"])


def functional_model(work: common.Workload, element_spec: Any) -> tff.learning.models.FunctionalModel:
    """All clients get all parameters, whatever they see of W."""
    encode, scale, names = ENCODERS[work.meta.model], work.meta.logit_scale, list(work.init)

    @tf.function
    def logits(weights: Any, x: Any, training: bool) -> Tensor:
        params = dict(zip(names, weights[0]))
        if not work.sampled:
            return tf.matmul(encode(params, x), params["W"], transpose_b=True)
        rows = unit(tf.gather(params["W"], x["classes"]))
        return scale * tf.matmul(unit(encode(params, x["features"])), rows, transpose_b=True) - x["log_inclusion"]

    @tf.function
    def loss(output: Tensor, label: Tensor, sample_weight: Any = None) -> Tensor:
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=output))

    return tff.learning.models.FunctionalModel(
        initial_weights=(tuple(work.init.values()), ()),
        predict_on_batch_fn=logits,
        loss_fn=loss,
        metrics_fns=(no_loss, add_loss, mean_loss),
        input_spec=element_spec,
    )


def client_data(work: common.Workload, round: int, slot: int) -> tf.data.Dataset:
    pairs = (work.features[work.rows(round, slot)], work.answers(round, slot))
    data = tf.data.Dataset.from_tensor_slices(pairs).batch(work.meta.batch_size)
    if not work.sampled:
        return data
    request = {"classes": work.classes[round, slot], "log_inclusion": work.log_inclusion[round, slot]}
    return data.map(lambda x, y: (OrderedDict(features=x, **request), y))


def end_workers() -> None:
    """TFF leaves its worker, a process of several GB, behind."""
    for children in Path("/proc/self/task").glob("*/children"):
        for child in children.read_text().split():
            os.kill(int(child), signal.SIGKILL)


def main() -> None:
    flags = common.flags(__doc__, list(LOOPS))
    tf.config.threading.set_intra_op_parallelism_threads(flags.threads)
    tf.config.threading.set_inter_op_parallelism_threads(flags.threads)
    tff.backends.native.set_sync_local_cpp_execution_context(max_concurrent_computation_calls=flags.threads)
    work = common.read(flags.folder)
    meta = work.meta
    process = tff.learning.algorithms.build_weighted_fed_avg(
        functional_model(work, client_data(work, 0, 0).element_spec),
        tff.learning.optimizers.build_sgdm(meta.learning_rate),
        tff.learning.optimizers.build_sgdm(meta.server_learning_rate, meta.server_momentum or None),
        loop_implementation=LOOPS[flags.variant],
    )
    state = process.initialize()
    watch, losses = common.Stopwatch(), []
    for round in range(flags.rounds):
        result = process.next(state, [client_data(work, round, slot) for slot in range(meta.clients_per_round)])
        state = result.state
        watch.lap()
        losses.append(result.metrics["client_work"]["train"]["loss"])
    common.report("tff", "tensorflow-federated", flags, watch, losses)


if __name__ == "__main__":
    try:
        main()
    finally:
        end_workers()
