"""Every spelling of an op follows its rule: operators, methods, functions, modules; compiled too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from recorder import run_eager
from torch import nn

import ampbridge as amp

LOW = torch.bfloat16


@pytest.fixture(scope="module")
def x(device: str) -> torch.Tensor:
    return (torch.rand(4, 4) + 0.1).to(device, LOW)


@pytest.fixture(scope="module")
def image(device: str) -> torch.Tensor:
    return torch.randn(1, 1, 6, 6).to(device, LOW)


def of_matrix(*spellings: Callable[[torch.Tensor], Any]) -> tuple[str, tuple[Any, ...]]:
    return "x", spellings


def of_image(*spellings: Callable[[torch.Tensor], Any]) -> tuple[str, tuple[Any, ...]]:
    return "image", spellings


SPELLINGS = {
    "add": of_matrix(
        lambda x: x + x,
        lambda x: torch.add(x, x),
        lambda x: x.add(x),
        lambda x: 2 + x,
        lambda x: x + 2,
        lambda x: x.__radd__(x),
        lambda x: sum([x, x]),
    ),
    "subtract": of_matrix(
        lambda x: x - x, lambda x: 2 - x, lambda x: x.sub(x), lambda x: torch.sub(x, x)
    ),
    "multiply": of_matrix(
        lambda x: x * x, lambda x: 2 * x, lambda x: torch.mul(x, x), lambda x: x.mul(x)
    ),
    "divide": of_matrix(lambda x: x / x, lambda x: torch.div(x, x), lambda x: x.div(x)),
    "pow": of_matrix(lambda x: x**2, lambda x: 2**x, lambda x: x.pow(2), lambda x: torch.pow(x, 2)),
    "matmul": of_matrix(
        lambda x: x @ x,
        lambda x: x.matmul(x),
        lambda x: torch.matmul(x, x),
        lambda x: torch.linalg.matmul(x, x),
        lambda x: x.__rmatmul__(x),
    ),
    "mm": of_matrix(lambda x: torch.mm(x, x), lambda x: x.mm(x)),
    "bmm": of_matrix(lambda x: torch.bmm(x[None], x[None]), lambda x: x[None].bmm(x[None])),
    "linear": of_matrix(lambda x: F.linear(x, x), lambda x: torch._C._nn.linear(x, x)),
    "einsum": of_matrix(lambda x: torch.einsum("ij,jk->ik", x, x)),
    "softmax": of_matrix(
        lambda x: F.softmax(x, -1),
        lambda x: torch.softmax(x, -1),
        lambda x: x.softmax(-1),
        lambda x: torch.special.softmax(x, -1),
        lambda x: nn.Softmax(-1)(x),
    ),
    "softmin": of_matrix(lambda x: F.softmin(x, -1), lambda x: nn.Softmin(-1)(x)),
    "gumbel_softmax": of_matrix(lambda x: F.gumbel_softmax(x)),
    "log_softmax": of_matrix(
        lambda x: F.log_softmax(x, -1),
        lambda x: torch.log_softmax(x, -1),
        lambda x: x.log_softmax(-1),
        lambda x: nn.LogSoftmax(-1)(x),
    ),
    "norm": of_matrix(
        lambda x: x.norm(),
        lambda x: torch.norm(x),
        lambda x: x.norm(p=1),
        lambda x: torch.norm(x, dim=1),
        lambda x: torch.linalg.norm(x),
    ),
    "sum": of_matrix(lambda x: x.sum(), lambda x: torch.sum(x), lambda x: x.sum(1)),
    "mean": of_matrix(lambda x: x.mean(), lambda x: torch.mean(x)),
    "tanh": of_matrix(
        lambda x: x.tanh(), lambda x: torch.tanh(x), lambda x: F.tanh(x), lambda x: nn.Tanh()(x)
    ),
    "gelu": of_matrix(lambda x: F.gelu(x), lambda x: nn.GELU()(x)),
    "relu": of_matrix(
        lambda x: F.relu(x), lambda x: torch.relu(x), lambda x: x.relu(), lambda x: nn.ReLU()(x)
    ),
    "sigmoid": of_matrix(lambda x: F.sigmoid(x), lambda x: torch.sigmoid(x), lambda x: x.sigmoid()),
    "silu": of_matrix(lambda x: F.silu(x), lambda x: nn.SiLU()(x)),
    "exp": of_matrix(lambda x: torch.exp(x), lambda x: x.exp()),
    "reciprocal": of_matrix(
        lambda x: x.reciprocal(),
        lambda x: torch.reciprocal(x),
        lambda x: 2 / x,  # as under CUDA autocast: x.reciprocal() * 2
        lambda x: x.__rtruediv__(2),
    ),
    "layer_norm": of_matrix(
        lambda x: F.layer_norm(x, (4,)),
        lambda x: torch.layer_norm(x, (4,)),
        lambda x: nn.LayerNorm(4, elementwise_affine=False)(x),
    ),
    "rms_norm": of_matrix(lambda x: F.rms_norm(x, (4,)), lambda x: torch.rms_norm(x, (4,))),
    "group_norm": of_image(lambda x: F.group_norm(x, 1), lambda x: torch.group_norm(x, 1)),
    "batch_norm": of_matrix(
        lambda x: F.batch_norm(x, None, None, training=True),
        lambda x: nn.BatchNorm1d(4, affine=False, track_running_stats=False)(x),
    ),
    "conv2d": of_image(
        lambda x: F.conv2d(x, x[..., :3, :3]),
        lambda x: torch.conv2d(x, x[..., :3, :3]),
        lambda x: F.conv2d(x, x[..., :3, :3], padding="same"),
    ),
    "interpolate_bilinear": of_image(
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    ),
    "mse_loss": of_matrix(lambda x: F.mse_loss(x, x + 1), lambda x: nn.MSELoss()(x, x + 1)),
    "dropout": of_matrix(lambda x: F.dropout(x), lambda x: nn.Dropout()(x)),
    "concat": of_matrix(lambda x: torch.cat([x, x]), lambda x: torch.concat([x, x])),
    "stack": of_matrix(lambda x: torch.stack([x, x])),
    "cumsum": of_matrix(lambda x: x.cumsum(0), lambda x: torch.cumsum(x, 0)),
    "logsumexp": of_matrix(lambda x: torch.logsumexp(x, 0), lambda x: x.logsumexp(0)),
    "normalize": of_matrix(lambda x: F.normalize(x)),
    "var": of_matrix(lambda x: torch.var(x), lambda x: x.var()),
    "std": of_matrix(lambda x: x.std(), lambda x: torch.std(x)),
}
CASES = [(op, rule) for op in SPELLINGS for rule in ("deny", "allow")]


def policy_with(op: str, rule: str) -> amp.Policy:
    return amp.Policy("O1", "bfloat16", execution="native", **{rule: [op]})


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("op, rule", CASES)
@pytest.mark.slow
def test_all_spellings_follow_the_rule(
    op: str, rule: str, compiled: bool, request: pytest.FixtureRequest
) -> None:
    fixture, spellings = SPELLINGS[op]
    x = request.getfixturevalue(fixture)
    arrives, runs = (LOW, torch.float32) if rule == "deny" else (torch.float32, LOW)

    def results(x: torch.Tensor) -> list[torch.Tensor]:
        return [spelling(x) for spelling in spellings]

    run = torch.compile(results, backend="eager", fullgraph=True) if compiled else results
    with amp.autocast(policy_with(op, rule), backend="torch"):
        found = [result.dtype for result in run(x.to(arrives))]
    assert found == [runs] * len(spellings)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize(
    "deny, kernels",
    [
        (["linear", "matmul", "bmm", "baddbmm"], {"addmm", "mm", "bmm", "baddbmm"}),
        (["softmax", "scaled_dot_product_attention"], {"_softmax"}),
    ],
)
def test_multi_head_attention_does_not_hide_its_parts(
    need_weights: bool, deny: list[str], kernels: set[str], device: str
) -> None:
    attention = nn.MultiheadAttention(8, 2).to(device)
    x = torch.randn(3, 2, 8, device=device)
    policy = amp.Policy("O1", "bfloat16", deny=deny)
    ran = run_eager(
        lambda x: attention(x, x, x, need_weights=need_weights),
        [x],
        amp.autocast(policy, backend="torch"),
    )
    seen = [dtypes for name, dtypes in ran.calls if name in kernels]
    assert seen or not need_weights
    assert set().union(*seen) <= {"float32"}


@pytest.mark.parametrize("evaluating", [False, True])
def test_an_encoder_layer_does_not_hide_its_parts(evaluating: bool, device: str) -> None:
    """In evaluation it has a fused kernel, which would not ask the lists."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).to(device).train(not evaluating)
    x = torch.randn(2, 3, 8, device=device)
    policy = amp.Policy("O1", "bfloat16", deny=["linear", "matmul", "scaled_dot_product_attention"])
    with torch.no_grad():
        ran = run_eager(layer, [x], amp.autocast(policy, backend="torch"))
    assert ran.dtypes == {"float32"}


def left_alone() -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    return {
        "in place": lambda x: x.exp_(),
        "out": lambda x: torch.exp(x, out=torch.empty_like(x)),
        "dtype by name": lambda x: x.softmax(-1, dtype=LOW),
        "dtype by position": lambda x: torch.softmax(x, -1, LOW),
        "view": lambda x: x.reshape(2, 8),
    }


@pytest.mark.parametrize("how", left_alone())
def test_what_autocast_leaves_alone_is_left_alone(how: str, x: torch.Tensor) -> None:
    with amp.autocast("O1:bfloat16", backend="torch"):
        assert left_alone()[how](x.clone()).dtype is LOW


def test_float64_and_integers_are_left_alone(device: str) -> None:
    with amp.autocast("O1:bfloat16", backend="torch"):
        wide = torch.ones(4, 4, device=device, dtype=torch.float64)
        assert (wide @ wide).dtype is torch.float64
        assert wide.softmax(-1).dtype is torch.float64
        assert torch.ones(3, device=device, dtype=torch.int32).sum().dtype is torch.int64


def test_batch_norm_keeps_its_running_statistics(device: str) -> None:
    """A cast copy of them would take the update and be lost."""
    for rule in ("allow", "deny"):
        norm = nn.BatchNorm1d(4).to(device)
        arrives = torch.float32 if rule == "allow" else LOW
        with amp.autocast(policy_with("batch_norm", rule), backend="torch"):
            norm(torch.full((8, 4), 3.0, device=device, dtype=arrives))
        assert torch.allclose(norm.running_mean, torch.full((4,), 0.3, device=device))


@pytest.mark.parametrize("execution", ["native", "simulated"])
@pytest.mark.parametrize("lists, runs", [("tensorflow", torch.float32), ("paddle", LOW)])
def test_what_becomes_of_unlisted_ops(
    lists: str, runs: torch.dtype, execution: str, x: torch.Tensor
) -> None:
    """TensorFlow keeps them in float32; Paddle takes the widest input."""
    if execution == "simulated" and not x.is_cpu:
        pytest.skip("simulation is of the CPU")
    policy = amp.Policy("O1", "bfloat16", lists=lists, execution=execution)
    with amp.autocast(policy, backend="torch"):
        assert torch.sin(x).dtype is runs
        assert torch.lerp(x, x.float(), 0.5).dtype is torch.float32  # torch itself refuses the mix
        assert x.t().dtype is LOW  # a view moves, it does not compute
        x_before = x.clone()
        x.view(-1)[0] = 7.0  # and stays a view
        assert x[0, 0] == 7.0
        x.copy_(x_before)
