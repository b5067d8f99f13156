"""``amp.explain(policy, model, x)`` of a model of Keras': held against the ops that reach TensorFlow."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ampbridge_testing import import_or_skip

import_or_skip("tensorflow")
import keras  # noqa: E402
from recorder import below_the_adapter  # noqa: E402

import ampbridge as amp  # noqa: E402

# One op of each kind: three products and sums of a normalization are none of their own.
NAMES = {
    "Conv2D": "conv2d",
    "DepthwiseConv2dNative": "depthwise_conv2d",
    "Rsqrt": "batch_norm",
    "Relu6": "relu",
    "Pad": "pad",
    "Mean": "mean",
    "MatMul": "linear",
    "Softmax": "softmax",
}


def test_the_ops_are_those_that_reach_tensorflow() -> None:
    keras.utils.set_random_seed(0)
    model = keras.applications.MobileNetV2((32, 32, 3), alpha=0.35, weights=None, classes=5)
    x = np.random.default_rng(0).random((2, 32, 32, 3), np.float32)
    policy = amp.Policy("O1", "bfloat16", execution="native")
    found = amp.explain(policy, model, x)
    amp.decorate(model, policy=policy)
    with below_the_adapter() as seen:
        model(x)
    amp.undecorate(model)
    expected = Counter((NAMES[op], dtype) for op, dtype in seen if op in NAMES)
    expected["add", "bfloat16"] = seen.count(("AddV2", "bfloat16"))  # others are a normalization's
    assert {(row.op, row.dtype): row.calls for row in found.ops} == expected
    assert expected["conv2d", "bfloat16"] == 35
    assert [row.rule for row in found.ops if row.op == "softmax"] == ["O1 deny"]
