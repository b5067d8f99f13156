"""What is observed equals what Paddle itself, the values and NumPy tell of the same pass."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn
from paddle_reference import normal
from recorder import Recorder, counted

import ampbridge as amp
from ampbridge import lens
from ampbridge.workloads import digits, weights
from ampbridge_paddle import workloads

WORKLOADS = ("mlp", "conv", "transformer")
POLICIES = {
    "O0": amp.Policy("O0"),
    **{
        f"{level} {dtype}": amp.Policy(level, dtype)
        for level in ("O1", "O2")
        for dtype in ("float16", "bfloat16")
    },
    "paddle": amp.Policy("O1", lists="paddle"),
    "tensorflow": amp.Policy("O1", "bfloat16", lists="tensorflow"),
    "safe": amp.Policy("O2", lists="safe"),
    "custom": amp.Policy("O1", deny=["gelu", "matmul"], allow=["softmax", "layer_norm", "mean"]),
}


def example(workload: str) -> tuple[paddle.nn.Layer, np.ndarray, np.ndarray]:
    model = getattr(workloads, workload)(weights.make(workload, 2))
    training, _ = digits.load(workload)
    x, y = next(iter(digits.batches(training, 32, 1, 2)))
    return model, x, y


def recorded(
    model: Any, batch: Any, policy: amp.Policy, loss_fn: Any = workloads.loss
) -> tuple[Counter[Any], Counter[str]]:
    """What the recorder and Paddle itself count in two passes without ampbridge's lens."""
    recorder = Recorder(policy.dtype if policy.level != "O0" else "float32")

    def judged(model: Any, *batch: Any) -> Any:
        with recorder:
            return loss_fn(model, *batch)

    kernels: Counter[str] = Counter()

    def counting(model: Any, *batch: Any) -> Any:
        with counted() as found:
            loss = loss_fn(model, *batch)
        kernels.update(found)
        return loss

    if policy.level == "O2":
        amp.decorate(model, policy=policy)
    for loss in (judged, counting):
        amp.value_and_grad(loss, model, *batch, policy=policy, scaler=None)
    return recorder.calls, kernels


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
@pytest.mark.parametrize("workload", WORKLOADS)
def test_census_equals_the_recorder_op_by_op(workload: str, policy: amp.Policy) -> None:
    if policy.level != "O0":
        assert policy.category("multiply") == "promote"  # the recorder's probe
    model, *batch = example(workload)
    census = lens.census(workloads.loss, model, *batch, policy=policy)
    judged, kernels = recorded(model, batch, policy)
    found = kernels_of(census)
    assert found == judged
    hidden = {"scale"} if policy.dtype == "float16" else set()  # by which regions round as well
    assert without(hidden, as_paddle_counts(found)) == without(hidden, kernels)


def kernels_of(census: lens.Census) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for row in census.rows:
        found.update({(kernel.name, row.dtype): times for kernel, times in row.kernels})
    return found


def as_paddle_counts(found: Counter[Any]) -> Counter[str]:
    """``linear`` calls two kernels on a CPU."""
    names: Counter[str] = Counter()
    for (name, _), times in found.items():
        names.update({part: times for part in (("matmul", "add") if name == "linear" else (name,))})
    return names


def without(hidden: set[str], kernels: Counter[str]) -> Counter[str]:
    return Counter({name: times for name, times in kernels.items() if name not in hidden})


class Various(nn.Layer):
    """A convolution with its bias, an attention, numbers beside tensors, a function of several kernels."""

    def __init__(self) -> None:
        super().__init__()
        paddle.seed(1)
        self.conv = nn.Conv2D(1, 4, 3)
        self.head = nn.Linear(6, 3)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        x = (1.0 - self.conv(x)) * 2.0 + 0.3
        x = x[:, :, 1:] / 3.0
        x = F.scaled_dot_product_attention(x, x, x * 0.5)
        return self.head(x.tanh())


def test_census_equals_the_recorder_on_functions_and_operators() -> None:
    def loss(model: Any, x: Any, y: Any) -> Any:
        return F.mse_loss(model(x), y)

    batch = normal(2, 1, 8, 8), normal(2, 4, 5, 3)
    for policy in (amp.Policy("O0"), amp.Policy("O1"), amp.Policy("O1", deny=["linear", "conv2d"])):
        census = lens.census(loss, Various(), *batch, policy=policy)
        judged, kernels = recorded(Various(), batch, policy, loss)
        assert kernels_of(census) == judged
        hidden = {"scale"}
        found = as_paddle_counts(kernels_of(census))
        assert without(hidden, found) == without(hidden, kernels)
        assert [row.op for row in census.rows if row.layer == "conv"] == ["conv2d"]
        assert {row.op for row in census.rows} >= {"scaled_dot_product_attention", "mse_loss"}
