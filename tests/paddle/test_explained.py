"""``amp.explain(policy, model, x)`` of a model of Paddle's: held against Paddle's count of kernels."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from recorder import counted

import ampbridge as amp

NAMES = {"matmul": "linear", "pool2d": "max_pool2d"}


@pytest.mark.filterwarnings("ignore::ampbridge.SimulationWarning")
def test_the_ops_are_those_that_paddle_counts() -> None:
    model = paddle.vision.models.LeNet()
    x = np.random.default_rng(0).random((2, 1, 28, 28), np.float32)
    with counted() as kernels:
        model(paddle.to_tensor(x))
    found = amp.explain("O1", model, x)
    del kernels["reshape"], kernels["add"]  # biases of convolutions and linear layers
    expected = {NAMES.get(name, name): times for name, times in kernels.items()}
    assert {row.op: row.calls for row in found.ops} == expected
    low = paddle.amp.white_list()["float16"]["O1"]
    assert {"conv2d", "matmul"} <= low
    for row in found.ops:
        if row.op in ("conv2d", "linear"):
            assert (row.dtype, row.rule, row.by) == ("float16", "O1 allow", "simulated")
        else:
            assert row.rule == "promote"
