"""Each op runs in the precision that ``Policy.category`` says, and every witness says so.

Seen by a recorder below autograd that knows nothing of ampbridge, and by ``observe`` and ``explain``.
Natively: a simulated op computes in float32 whatever its rule, and shows it by its result's dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from recorder import Recorder, run_compiled, run_eager
from test_observing import observed

import ampbridge as amp
from ampbridge.policies import op_table
from ampbridge.reports.explain import ExplanationTable


class Case(NamedTuple):
    """``run(*inputs)`` is the op; ``shapes`` are those of its floating-point inputs."""

    run: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]


M, V, IMAGE = (4, 4), (4,), (1, 2, 6, 6)
LOW = ("bfloat16", "float16")
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


# -- every witness, asked about each op

EXPLAINED = (
    amp.Policy("O1", "bfloat16", execution="native"),
    amp.Policy("O1", "bfloat16", lists="paddle", execution="native"),
    amp.Policy("O1", "bfloat16", lists="tensorflow", execution="native"),
    amp.Policy("O1", "bfloat16", lists="native"),
    amp.Policy("O1", "bfloat16", deny=["matmul", "relu"], allow=["exp"], execution="native"),
    amp.Policy("O2", "bfloat16", execution="native"),
)
# The first has a log_softmax that CUDA's autocast leaves in the dtype that arrives, the second no kernel.
NOT_LOW_ON_CUDA = ("cross_entropy", "fft_rfft")


@cache
def tables() -> list[ExplanationTable]:
    return [amp.explain(policy, "torch") for policy in EXPLAINED]


def settings(op: str, low: str, device: str) -> list[amp.Policy]:
    """The default lists, and those that deny and allow the op."""
    lists: list[dict[str, Any]] = [{}, {"deny": [op]}, {"allow": [op]}]
    if device == "cuda" and op in NOT_LOW_ON_CUDA:
        del lists[0]
    return [amp.Policy("O1", low, execution="native", **each) for each in lists]


def runs(op: str, policy: amp.Policy) -> list[tuple[tuple[str, ...], str]]:
    """In which dtypes inputs arrive, and in which the op has to run then."""
    low, category = policy.dtype, policy.category(op)
    if category == "allow":
        return [(("float32",), low)]
    if category == "deny":
        return [((low,), "float32")]
    alone = [(("float32",), "float32"), ((low,), low)]
    if len(CASES[op].shapes) > 1 and op in policy.op_list.promote:
        return [*alone, ((low, "float32"), "float32")]
    return alone


@pytest.mark.parametrize("op", CASES)
def test_an_op_runs_in_the_dtype_of_its_category_by_every_witness(op: str, device: str) -> None:
    for low in LOW:
        for policy in settings(op, low, device):
            check_what_runs(op, policy, device, run_eager)
        check_simulated_results(op, low)
    for policy in settings(op, "bfloat16", device):
        check_what_is_observed(op, policy, device)
    check_what_is_explained(op, CASES[op], device)


@pytest.mark.parametrize("op", CASES)
def test_a_compiled_op_runs_in_the_dtype_of_its_category(op: str, device: str) -> None:
    """In one precision: what Dynamo traces does not depend on which."""
    for policy in settings(op, "bfloat16", device):
        check_what_runs(op, policy, device, run_compiled)


def check_what_runs(op: str, policy: amp.Policy, device: str, run: Callable[..., Recorder]) -> None:
    """By the recorder."""
    case = CASES[op]
    for arrives, expected in runs(op, policy):
        region = amp.autocast(policy, backend="torch")
        ran = run(case.run, inputs_of(case, device, *arrives), region)
        assert ran.dtypes == {expected}, (policy, arrives, ran.calls)


def check_what_is_observed(op: str, policy: amp.Policy, device: str) -> None:
    """One call by the op's name; simulated, too, where what runs does not show the dtype."""
    case = CASES[op]
    for execution in ("native",) if device == "cuda" else ("native", "simulated"):
        how = policy.replace(execution=execution)
        for arrives, expected in runs(op, policy):
            seen, _ = observed(case.run, *inputs_of(case, device, *arrives), policy=how)
            found = [(call.op, call.dtype) for call in seen.calls]
            assert found == [(op, expected)], (how, arrives)


def check_what_is_explained(op: str, case: Case, device: str) -> None:
    """By the recorder; and as native if torch.autocast alone does the same."""
    alone_in_float32 = device == "cuda" and op in NOT_LOW_ON_CUDA
    arriving = ["float32"] if alone_in_float32 else ["float32", "bfloat16"]

    def ran(region: Callable[[], Any]) -> list[set[str]]:
        return [run_eager(case.run, inputs_of(case, device, x), region()).dtypes for x in arriving]

    alone = ran(partial(torch.autocast, device, torch.bfloat16))
    for table in tables():
        row, found = table.op(op), ran(partial(amp.autocast, table.policy, backend="torch"))
        said = [{arrives if row.dtype == "inputs'" else row.dtype} for arrives in arriving]
        assert found == said, (table.policy, row)
        if not alone_in_float32 and row.category != "promote":
            assert row.by == ("native" if alone == said else "ampbridge"), (table.policy, row)


def check_simulated_results(op: str, low: str) -> None:
    """They are as low as native ones, where torch has kernels."""
    for level, lists in product(("O1", "O2"), ("torch", "paddle", "tensorflow", "safe")):
        policy = amp.Policy(level, low, lists=lists)
        native, simulated = (results(op, policy, how) for how in ("native", "simulated"))
        for arrives, dtype in native.items():
            assert dtype in (None, simulated[arrives]), (policy, arrives, "simulated")


def results(op: str, policy: amp.Policy, execution: str) -> dict[tuple[str, ...], Any]:
    """The result's dtype by those that arrive, on the CPU; None where torch has no kernel."""
    case, low = CASES[op], policy.dtype
    arriving = [("float32",), (low,), (low, "float32"), ("float32", low)][: 2 * len(case.shapes)]
    found: dict[tuple[str, ...], Any] = dict.fromkeys(arriving)
    with amp.autocast(policy.replace(execution=execution), backend="torch"):
        for arrives in arriving:
            with suppress(RuntimeError, NotImplementedError):
                found[arrives] = case.run(*inputs_of(case, "cpu", *arrives)).dtype
    return found


def test_a_transform_is_explained(device: str) -> None:
    """No policy can allow it: torch's kernels for CPUs do not take 16 bits."""
    check_what_is_explained("fft_rfft", Case(torch.fft.rfft, (M,)), device)
