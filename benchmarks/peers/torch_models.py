"""The workloads' models in PyTorch, as functions of named parameters, shared by the peers that use it."""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import common
import torch
import torch.nn.functional as F
from torch import Tensor

Params = dict[str, Tensor]
GROUPS = 8
# expanded, out, squeeze, activation, stride: MobileNetV3-Large's inverted residuals
BLOCKS = (
    (16, 16, False, F.relu_, 1),
    (64, 24, False, F.relu_, 2),
    (72, 24, False, F.relu_, 1),
    (72, 40, True, F.relu_, 2),
    (120, 40, True, F.relu_, 1),
    (120, 40, True, F.relu_, 1),
    (240, 80, False, F.hardswish, 2),
    (200, 80, False, F.hardswish, 1),
    (184, 80, False, F.hardswish, 1),
    (184, 80, False, F.hardswish, 1),
    (480, 112, True, F.hardswish, 1),
    (672, 112, True, F.hardswish, 1),
    (672, 160, True, F.hardswish, 2),
    (960, 160, True, F.hardswish, 1),
    (960, 160, True, F.hardswish, 1),
)
DENSE = ("fc", "fc1", "fc2", "head")  # layers that are matrices; all others with a kernel are convolutions


def lr(params: Params, x: Tensor) -> Tensor:
    return x


def cnn(params: Params, x: Tensor) -> Tensor:
    x = x.permute(0, 3, 1, 2)  # a view that is channels_last already
    x = F.relu_(F.conv2d(x, params["conv1.kernel"], params["conv1.bias"]))
    x = F.relu_(F.conv2d(x, params["conv2.kernel"], params["conv2.bias"]))
    x = F.max_pool2d(x, 2).permute(0, 2, 3, 1).flatten(1)
    return F.relu_(F.linear(x, params["fc.kernel"], params["fc.bias"]))


def head(params: Params, x: Tensor) -> Tensor:
    return F.linear(x, params["A"])


def conv_norm(params: Params, name: str, x: Tensor, stride: int = 1, groups: int = 1) -> Tensor:
    kernel = params[f"{name}.kernel"]
    x = F.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2, groups=groups)
    return F.group_norm(x, GROUPS, params[f"{name}.norm.scale"], params[f"{name}.norm.bias"])


def squeeze_excite(params: Params, name: str, x: Tensor) -> Tensor:
    weights = x.mean((2, 3))
    weights = F.relu_(F.linear(weights, params[f"{name}.fc1.kernel"], params[f"{name}.fc1.bias"]))
    weights = F.hardsigmoid(F.linear(weights, params[f"{name}.fc2.kernel"], params[f"{name}.fc2.bias"]))
    return x * weights[:, :, None, None]


def mobilenet(params: Params, x: Tensor) -> Tensor:
    x = F.hardswish(conv_norm(params, "stem", x.permute(0, 3, 1, 2), stride=2))
    for number, (expanded, out, squeeze, activation, stride) in enumerate(BLOCKS, 1):
        name, inputs = f"block_{number}", x
        if expanded != x.shape[1]:
            x = activation(conv_norm(params, f"{name}.expand", x))
        x = activation(conv_norm(params, f"{name}.depthwise", x, stride, groups=expanded))
        if squeeze:
            x = squeeze_excite(params, f"{name}.squeeze", x)
        x = conv_norm(params, f"{name}.project", x)
        if stride == 1 and out == inputs.shape[1]:
            x = x + inputs
    x = F.hardswish(conv_norm(params, "last", x)).mean((2, 3))
    return F.linear(x, params["head.kernel"], params["head.bias"])


ENCODERS = {encoder.__name__: encoder for encoder in (lr, cnn, head, mobilenet)}


def unit(x: Tensor) -> Tensor:
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # F.normalize also looks out for zeros, and is slower


def _plain(encode: Callable, params: Params, x: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(encode(params, x), params["W"]), targets)


def _sampled(
    encode: Callable, scale: float, params: Params, x: Tensor, targets: Tensor, log_inclusion: Tensor
) -> Tensor:
    logits = torch.addmm(-log_inclusion, unit(encode(params, x)), unit(params["W"]).T, alpha=scale)
    return F.cross_entropy(logits, targets)


def loss_function(work: common.Workload) -> Callable[..., Tensor]:
    """(params, features [B, ...], targets [B]) -> mean loss; with S_k also log_inclusion [S], and W is S_k's rows."""
    encode = ENCODERS[work.meta.model]
    return partial(_sampled, encode, work.meta.logit_scale) if work.sampled else partial(_plain, encode)


def parameters(work: common.Workload) -> Params:
    """The initial parameters in PyTorch's layouts: matrices [outputs, inputs], convolutions OIHW in channels_last."""

    def convert(name: str, array: Tensor) -> Tensor:
        layer = name.split(".")[-2] if name.endswith(".kernel") else ""
        if name == "A" or layer in DENSE:
            return array.T.contiguous()
        if not layer:  # W, a bias, or a scale
            return array
        if array.ndim == 3:  # depthwise [k, k, C]
            array = array[:, :, None]
        elif array.ndim == 2:  # [k * k * inputs, outputs]
            size = 3 if layer == "stem" else 1
            array = array.reshape(size, size, -1, array.shape[-1])
        return array.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)

    return {name: convert(name, torch.from_numpy(array)) for name, array in work.init.items()}


class Classifier(torch.nn.Module):
    """A workload's model for frameworks that want a module: all parameters, whatever a client sees of W."""

    def __init__(self, work: common.Workload) -> None:
        super().__init__()
        self.names = {name: name.replace(".", "_") for name in work.init}
        for name, value in parameters(work).items():
            self.register_parameter(self.names[name], torch.nn.Parameter(value))
        self.function = loss_function(work)

    def loss(
        self, x: Tensor, targets: Tensor, classes: Tensor | None = None, log_inclusion: Tensor | None = None
    ) -> Tensor:
        """Mean over a batch. The gradient of W is sparse if only some classes count."""
        params = {name: getattr(self, attribute) for name, attribute in self.names.items()}
        if classes is None:
            return self.function(params, x, targets)
        params["W"] = F.embedding(classes, params["W"], sparse=True)
        return self.function(params, x, targets, log_inclusion)


def client_data(work: common.Workload, round: int, slot: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """What the slot-th client of a round trains on: features [E, ...], targets [E], and what else `loss` takes."""
    x = torch.from_numpy(work.features)[torch.from_numpy(work.rows(round, slot))]
    targets = torch.from_numpy(work.answers(round, slot)).long()
    if not work.sampled:
        return x, targets, {}
    classes = torch.from_numpy(work.classes[round, slot]).long()
    return x, targets, {"classes": classes, "log_inclusion": torch.from_numpy(work.log_inclusion[round, slot])}
