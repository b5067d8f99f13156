"""Each op runs in the precision that ``Policy.category`` says, eagerly and compiled.

Seen by a recorder below autograd that knows nothing of ampbridge. Natively: a simulated op computes
in float32 whatever its rule, and ``test_simulation.py`` holds its results' dtypes against native ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from recorder import Recorder, run_compiled, run_eager

import ampbridge as amp
from ampbridge.policies import op_table


class Case(NamedTuple):
    """``run(*inputs)`` is the op; ``shapes`` are those of its floating-point inputs."""

    run: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]


M, V, IMAGE = (4, 4), (4,), (1, 2, 6, 6)
LABELS = torch.zeros(4, dtype=torch.long)


def attention(x: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(x, x, x)


CASES = {
    # allowed
    "matmul": Case(lambda x, y: x @ y, (M, M)),
    "mm": Case(torch.mm, (M, M)),
    "bmm": Case(torch.bmm, ((2, 4, 4), (2, 4, 4))),
    "mv": Case(torch.mv, (M, V)),
    "addmm": Case(torch.addmm, (M, M, M)),
    "linear": Case(F.linear, (M, M, V)),
    "einsum": Case(lambda x, y: torch.einsum("ij,jk->ik", x, y), (M, M)),
    "conv1d": Case(F.conv1d, ((1, 2, 8), (3, 2, 3))),
    "conv2d": Case(F.conv2d, (IMAGE, (3, 2, 3, 3))),
    "conv_transpose2d": Case(F.conv_transpose2d, (IMAGE, (2, 3, 3, 3))),
    "scaled_dot_product_attention": Case(attention, ((1, 2, 4, 8),)),
    "prelu": Case(F.prelu, (M, (1,))),
    # denied
    "softmax": Case(lambda x: x.softmax(-1), (M,)),
    "log_softmax": Case(lambda x: F.log_softmax(x, -1), (M,)),
    "logsumexp": Case(lambda x: torch.logsumexp(x, -1), (M,)),
    "layer_norm": Case(lambda x, w, b: F.layer_norm(x, (4,), w, b), (M, V, V)),
    "group_norm": Case(lambda x: F.group_norm(x, 2), (IMAGE,)),
    "softplus": Case(F.softplus, (M,)),
    "cross_entropy": Case(lambda x: F.cross_entropy(x, LABELS.to(x.device)), (M,)),
    "nll_loss": Case(lambda x: F.nll_loss(x, LABELS.to(x.device)), (M,)),
    "mse_loss": Case(F.mse_loss, (M, M)),
    "l1_loss": Case(F.l1_loss, (M, M)),
    "smooth_l1_loss": Case(F.smooth_l1_loss, (M, M)),
    "kl_div": Case(lambda x, y: F.kl_div(x, y, reduction="sum"), (M, M)),
    "sum": Case(lambda x: x.sum(), (M,)),
    "prod": Case(lambda x: x.prod(), (M,)),
    "cumsum": Case(lambda x: x.cumsum(0), (M,)),
    "exp": Case(torch.exp, (M,)),
    "log": Case(torch.log, (M,)),
    "log1p": Case(torch.log1p, (M,)),
    "expm1": Case(torch.expm1, (M,)),
    "pow": Case(lambda x: x**3, (M,)),
    "rsqrt": Case(torch.rsqrt, (M,)),
    "reciprocal": Case(torch.reciprocal, (M,)),
    "tan": Case(torch.tan, (M,)),
    "cosh": Case(torch.cosh, (M,)),
    # following their inputs
    "dot": Case(torch.dot, (V, V)),
    "atan2": Case(torch.atan2, (M, M)),
    "addcmul": Case(torch.addcmul, (M, M, M)),
    "tensordot": Case(lambda x, y: torch.tensordot(x, y, 1), (M, M)),
    "scatter_add": Case(lambda x, y: x.scatter_add(0, LABELS.to(x.device)[None], y), (M, M)),
    "concat": Case(lambda x, y: torch.cat([x, y]), (M, M)),
    "stack": Case(lambda x, y: torch.stack([x, y]), (M, M)),
    "add": Case(lambda x, y: x + y, (M, M)),
    "multiply": Case(lambda x, y: x * y, (M, M)),
    "tanh": Case(torch.tanh, (M,)),
    "sigmoid": Case(torch.sigmoid, (M,)),
    "relu": Case(F.relu, (M,)),
    "gelu": Case(F.gelu, (M,)),
    "silu": Case(F.silu, (M,)),
    "mean": Case(lambda x: x.mean(), (M,)),
    "max_pool2d": Case(lambda x: F.max_pool2d(x, 2), (IMAGE,)),
    "max_pool3d": Case(lambda x: F.max_pool3d(x, 2), ((1, 2, 4, 4, 4),)),
    "trace": Case(torch.trace, (M,)),
}
# Compiled in one precision alone: what Dynamo traces does not depend on which.
RUNS = pytest.mark.parametrize(
    "run, low",
    [(run_eager, "bfloat16"), (run_eager, "float16"), (run_compiled, "bfloat16")],
    ids=["eager-bfloat16", "eager-float16", "compiled"],
)


def inputs_of(case: Case, device: str, *dtypes: str) -> list[torch.Tensor]:
    """Positive inputs away from 0; the last of ``dtypes`` is that of all further inputs."""
    names = [*dtypes, *[dtypes[-1]] * len(case.shapes)]
    return [
        (torch.rand(shape) + 0.5).to(device, getattr(torch, name))
        for shape, name in zip(case.shapes, names, strict=False)
    ]


def test_at_least_thirty_ops_are_covered() -> None:
    assert len(CASES) >= 30
    assert set(CASES) <= set(op_table.ops())


def test_the_ops_that_torch_lacks() -> None:
    """None of the table's ops is left out above because torch has no function for it, but these."""
    lacking = {op.name for op in op_table.ops().values() if not op.names.get("torch")}
    assert lacking >= {"rotary_embedding", "swiglu", "bias_add", "add_n"}
    assert lacking.isdisjoint(CASES)


@RUNS
@pytest.mark.parametrize("op", CASES)
def test_the_default_lists(op: str, run: Callable[..., Recorder], low: str, device: str) -> None:
    policy = amp.Policy("O1", low, execution="native")
    category = policy.category(op)
    arrives = low if category == "deny" else "float32"
    if (op, device) == ("cross_entropy", "cuda"):
        pytest.skip("torch's autocast leaves its log_softmax in the dtype that arrives")
    ran = run(
        CASES[op].run, inputs_of(CASES[op], device, arrives), amp.autocast(policy, backend="torch")
    )
    assert ran.calls
    assert ran.dtypes == {low if category == "allow" else "float32"}, ran.calls


@RUNS
@pytest.mark.parametrize("op", [op for op in CASES if amp.Policy("O1").category(op) == "promote"])
def test_ops_that_follow_stay_low_and_take_the_widest_of_mixed(
    op: str, run: Callable[..., Recorder], low: str, device: str
) -> None:
    case, policy = CASES[op], amp.Policy("O1", low, execution="native")
    region = amp.autocast(policy, backend="torch")
    assert run(case.run, inputs_of(case, device, low), region).dtypes == {low}
    if len(case.shapes) > 1 and op in policy.op_list.promote:
        region = amp.autocast(policy, backend="torch")
        mixed = inputs_of(case, device, low, "float32")
        assert run(case.run, mixed, region).dtypes == {"float32"}


@RUNS
@pytest.mark.parametrize("op", CASES)
def test_a_denied_op(op: str, run: Callable[..., Recorder], low: str, device: str) -> None:
    policy = amp.Policy("O1", low, deny=[op], execution="native")
    ran = run(
        CASES[op].run, inputs_of(CASES[op], device, low), amp.autocast(policy, backend="torch")
    )
    assert ran.dtypes == {"float32"}, ran.calls


@RUNS
@pytest.mark.parametrize("op", CASES)
def test_an_allowed_op(op: str, run: Callable[..., Recorder], low: str, device: str) -> None:
    policy = amp.Policy("O1", low, allow=[op], execution="native")
    ran = run(
        CASES[op].run,
        inputs_of(CASES[op], device, "float32"),
        amp.autocast(policy, backend="torch"),
    )
    assert ran.dtypes == {low}, ran.calls
