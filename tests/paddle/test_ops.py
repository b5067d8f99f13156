"""Each op runs in the precision that ``Policy.category`` says, and that ``explain`` tells.

The recorder looks at values alone. An op ran in the low precision if its output is what Paddle
computes, outside of any region, from inputs rounded by NumPy, rounded by NumPy; and if a later op
that follows its inputs (``sin``) returns 16-bit values for it. It ran in float32 if the output is
bit by bit what Paddle computes from the inputs as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle_reference import is_representable, normal, rounded

import ampbridge as amp
from ampbridge.policies import op_table
from ampbridge.reports.explain import ExplanationTable


class Case(NamedTuple):
    """``run(*inputs)`` is the op; the first ``cast`` inputs are those that an allowed op rounds."""

    run: Callable[..., Any]
    inputs: Sequence[np.ndarray]
    cast: int | None = None


def unary(
    run: Callable[..., Any], low: float = -2.0, high: float = 2.0, whole: bool = True
) -> Case:
    return Case(run, [_within(low, high, 6, 8)])


def binary(run: Callable[..., Any]) -> Case:
    return Case(run, [_within(0.1, 2.0, 6, 8), _within(0.1, 2.0, 6, 8, seed=1)])


def _within(low: float, high: float, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


MATRIX, SQUARE, VECTOR = normal(6, 8), normal(8, 8, seed=1), normal(8, seed=2)
BATCH, IMAGE, KERNEL = normal(2, 6, 8), normal(2, 4, 8, 8), normal(4, 4, 3, 3, seed=3)
LABELS = np.array([0, 1, 2, 3, 4, 5])
ZEROS, ONES = np.zeros(4, np.float32), np.ones(4, np.float32)

CASES = {
    "matmul": Case(paddle.matmul, [MATRIX, SQUARE]),
    "mm": Case(paddle.mm, [MATRIX, SQUARE]),
    "bmm": Case(paddle.bmm, [BATCH, normal(2, 8, 5)]),
    "mv": Case(paddle.mv, [MATRIX, VECTOR]),
    "dot": Case(paddle.dot, [VECTOR, normal(8, seed=5)]),
    "einsum": Case(lambda a, b: paddle.einsum("ij,jk->ik", a, b), [MATRIX, SQUARE]),
    "linear": Case(lambda x, w, b: F.linear(x, w, b), [MATRIX, SQUARE, VECTOR]),
    "addmm": Case(paddle.addmm, [MATRIX, MATRIX, SQUARE]),
    "conv1d": Case(F.conv1d, [normal(2, 4, 9), normal(4, 4, 3)]),
    "conv2d": Case(F.conv2d, [IMAGE, KERNEL]),
    "conv3d": Case(F.conv3d, [normal(1, 2, 5, 5, 5), normal(3, 2, 3, 3, 3)]),
    "conv_transpose2d": Case(F.conv2d_transpose, [IMAGE, KERNEL]),
    "depthwise_conv2d": Case(lambda x, w: F.conv2d(x, w, groups=4), [IMAGE, normal(4, 1, 3, 3)]),
    "prelu": Case(F.prelu, [IMAGE, np.float32([0.1, 0.2, 0.3, 0.4])]),
    "layer_norm": Case(lambda x, w, b: F.layer_norm(x, 8, w, b), [MATRIX, VECTOR, VECTOR], 1),
    "group_norm": Case(lambda x: F.group_norm(x, 2), [IMAGE]),
    "batch_norm": Case(
        lambda x, m, v: F.batch_norm(x, m, v, training=False), [IMAGE, ZEROS, ONES], 1
    ),
    "softmax": Case(F.softmax, [MATRIX]),
    "log_softmax": Case(F.log_softmax, [MATRIX]),
    "logsumexp": Case(lambda x: paddle.logsumexp(x, axis=1), [MATRIX]),
    "relu": unary(F.relu),
    "gelu": unary(F.gelu),
    "silu": unary(F.silu),
    "sigmoid": unary(F.sigmoid),
    "tanh": unary(paddle.tanh),
    "softplus": unary(F.softplus),
    "exp": unary(paddle.exp),
    "log": unary(paddle.log, 0.1),
    "log1p": unary(paddle.log1p, 0.1),
    "sqrt": unary(paddle.sqrt, 0.1),
    "rsqrt": unary(paddle.rsqrt, 0.1),
    "reciprocal": unary(paddle.reciprocal, 0.1),
    "square": unary(paddle.square),
    "sin": unary(paddle.sin),
    "pow": unary(lambda x: paddle.pow(x, 3.0), 0.1),
    "acos": unary(paddle.acos, -0.9, 0.9),
    "abs": unary(paddle.abs),
    "sum": Case(lambda x: paddle.sum(x, axis=1), [MATRIX]),
    "mean": Case(lambda x: paddle.mean(x, axis=1), [MATRIX]),
    "prod": Case(lambda x: paddle.prod(x, axis=1), [MATRIX]),
    "cumsum": Case(lambda x: paddle.cumsum(x, axis=1), [MATRIX]),
    "norm": Case(lambda x: paddle.linalg.norm(x, p=2, axis=1), [MATRIX]),
    "amax": Case(lambda x: paddle.max(x, axis=1), [MATRIX]),
    "add": binary(paddle.add),
    "subtract": binary(paddle.subtract),
    "multiply": binary(paddle.multiply),
    "divide": binary(paddle.divide),
    "maximum": binary(paddle.maximum),
    "atan2": binary(paddle.atan2),
    "where": Case(lambda x, y: paddle.where(x > y, x, y), [MATRIX, normal(6, 8, seed=9)]),
    "concat": Case(lambda x, y: paddle.concat([x, y]), [MATRIX, SQUARE]),
    "reshape": Case(lambda x: paddle.reshape(x, [8, 6]), [MATRIX]),
    "transpose": Case(lambda x: paddle.transpose(x, [1, 0]), [MATRIX]),
    "embedding": Case(lambda w: F.embedding(paddle.to_tensor([1, 2, 5]), w), [MATRIX]),
    "max_pool2d": Case(lambda x: F.max_pool2d(x, 2), [IMAGE]),
    "avg_pool2d": Case(lambda x: F.avg_pool2d(x, 2), [IMAGE]),
    "interpolate_bilinear": Case(lambda x: F.interpolate(x, [11, 11], mode="bilinear"), [IMAGE]),
    "cross_entropy": Case(
        lambda x: F.cross_entropy(x, paddle.to_tensor(LABELS), reduction="none"), [MATRIX]
    ),
    "smooth_l1_loss": Case(
        lambda x, y: F.smooth_l1_loss(x, y, "none"), [MATRIX, normal(6, 8)[::-1]]
    ),
    "kl_div": Case(lambda x, y: F.kl_div(x, y, "none"), [MATRIX, _within(0.1, 1, 6, 8)]),
    "scaled_dot_product_attention": Case(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        [normal(2, 5, 2, 8, seed=s) for s in (1, 2, 3)],
    ),
    # made of several kernels
    "mse_loss": binary(lambda x, y: F.mse_loss(x, y, "none")),
    "l1_loss": binary(lambda x, y: F.l1_loss(x, y, "none")),
    "normalize": unary(lambda x: F.normalize(x)),
    "cosine_similarity": binary(lambda x, y: F.cosine_similarity(x, y)),
    "glu": unary(lambda x: F.glu(x)),
    "logaddexp": binary(lambda x, y: paddle.logaddexp(x, y)),
    "var": Case(lambda x: paddle.var(x, axis=1), [MATRIX]),
    "std": Case(lambda x: paddle.std(x, axis=1), [MATRIX]),
}

# Canonical ops that Paddle has under no name; a policy that lists them warns (test_policies.py).
LACKING = {
    *("vdot", "addmv", "addr", "addbmm", "separable_conv2d", "conv_tbc", "multilabel_margin_loss"),
    *("exp2", "erfc", "sinc", "xlogy", "average", "bias_add", "squared_difference", "addcmul"),
    *("addcdiv", "embedding_bag", "index_copy", "tensorinv", "tensorsolve"),
}


def tensors(arrays: Sequence[np.ndarray]) -> list[paddle.Tensor]:
    return [paddle.to_tensor(np.ascontiguousarray(a)) for a in arrays]


def outside(case: Case, arrays: Sequence[np.ndarray]) -> np.ndarray:
    return case.run(*tensors(arrays)).numpy()


def arrived(case: Case, dtype: str) -> list[np.ndarray]:
    """The inputs, of which those that an allowed op rounds are rounded."""
    count = len(case.inputs) if case.cast is None else case.cast
    return [*(rounded(a, dtype) for a in case.inputs[:count]), *case.inputs[count:]]


def in_low(case: Case, dtype: str) -> np.ndarray:
    return rounded(outside(case, arrived(case, dtype)), dtype)


def low_inputs(case: Case, dtype: str) -> list[paddle.Tensor]:
    """Inputs that the region holds in the low precision."""
    count = len(case.inputs) if case.cast is None else case.cast
    low = [x.astype(dtype) for x in tensors(case.inputs[:count])]
    return [*low, *tensors(case.inputs[count:])]


def is_low(output: paddle.Tensor, dtype: str) -> bool:
    """What an op that follows its inputs makes of ``output``."""
    return is_representable(output, dtype) and is_representable(paddle.sin(output), dtype)


# -- every witness, asked about each op

EXPLAINED = (
    amp.Policy("O1", "bfloat16"),
    amp.Policy("O1", "float16", lists="paddle"),
    amp.Policy("O1", "bfloat16", lists="tensorflow"),
    amp.Policy("O1", "float16", deny=["matmul", "tanh"], allow=["exp"]),
    amp.Policy("O2", "bfloat16"),
)


@cache
def tables() -> list[ExplanationTable]:
    return [amp.explain(policy, "paddle") for policy in EXPLAINED]


@pytest.mark.parametrize("op", CASES)
def test_an_op_runs_in_the_precision_of_its_category_by_every_witness(op: str) -> None:
    for dtype in ("float16", "bfloat16"):
        default = amp.Policy("O1", dtype)
        denied, allowed = default.replace(deny=[op]), default.replace(allow=[op])
        assert denied.category(op) != "allow"
        for policy in (default, denied, allowed):
            check_float32_inputs(op, policy)
        for policy in (default, denied):
            check_low_inputs(op, policy)
    if paddle.device.get_device() == "cpu":
        check_what_is_explained(op)


def check_float32_inputs(op: str, policy: amp.Policy) -> None:
    case, dtype, allowed = CASES[op], policy.dtype, policy.category(op) == "allow"
    with amp.autocast(policy, "paddle"):
        output = case.run(*tensors(case.inputs))
        ran_low = is_low(output, dtype)
    if allowed and (op, dtype) == ("cross_entropy", "bfloat16"):
        assert output.dtype == paddle.float32, policy  # the loss alone, as on a GPU
        assert np.allclose(output.numpy(), in_low(case, dtype), rtol=2.0**-8), policy
        return
    assert ran_low == allowed, policy
    expected = in_low(case, dtype) if allowed else outside(case, case.inputs)
    assert np.array_equal(output.numpy(), expected), policy


def check_low_inputs(op: str, policy: amp.Policy) -> None:
    """A promoted op stays low, a denied one computes in float32 from what arrives."""
    case, dtype, denied = CASES[op], policy.dtype, policy.category(op) == "deny"
    with amp.autocast(policy, "paddle"):
        output = case.run(*low_inputs(case, dtype))
        ran_low = is_low(output, dtype)
    assert ran_low != denied, f"{policy!r}, low inputs"
    expected = outside(case, arrived(case, dtype)) if denied else in_low(case, dtype)
    assert np.array_equal(output.numpy(), expected), f"{policy!r}, low inputs"


def check_what_is_explained(op: str) -> None:
    """By values: low precision is what 16 bits can hold."""
    case = CASES[op]
    for table in tables():
        row, low = table.op(op), table.policy.dtype
        for arrives in ("float32", low):
            with amp.autocast(table.policy, "paddle"):
                x = low_inputs(case, low) if arrives == low else tensors(case.inputs)
                result = case.run(*x)
                if op == "embedding":  # looks up low values, whatever its rule: what follows tells
                    result = result * 0.7
            wanted = arrives if row.dtype == "inputs'" else row.dtype
            if wanted != "its parts'":
                ran_low = is_representable(result.numpy(), low)
                assert ran_low == (wanted == low), (table.policy, arrives, row)
        assert row.by == ("ampbridge" if row.category == "deny" else "simulated"), (
            table.policy,
            row,
        )


def test_ops_that_paddle_lacks_are_known() -> None:
    namespaces = {"paddle", "paddle_ops", "paddle_api"}
    without_name = {n for n, op in op_table.ops().items() if namespaces.isdisjoint(op.names)}
    assert without_name == LACKING
    assert not set(CASES) & LACKING
