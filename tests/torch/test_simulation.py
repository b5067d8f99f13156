"""Simulated execution: stored low, computed in float32, rounded once; the rules of native regions.

The references are float64, NumPy's float16 and ml_dtypes' bfloat16, and torch's own autocast for
what is low and what is not.
"""

from __future__ import annotations

import copy
import importlib
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from recorder import Recorder
from test_ops import Case
from test_spellings import SPELLINGS
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import ampbridge as amp
import ampbridge_torch
from ampbridge.errors import AmpBridgeWarning, UnsupportedError
from ampbridge.policies import hardware
from ampbridge_torch.autocast import execution as execution_module
from ampbridge_torch.autocast import simulation
from ampbridge_torch.autocast.mode import listed
from ampbridge_torch.autocast.rules import rules_for

NUMPY = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
SMALLEST_EXPONENT = {"float16": -24, "bfloat16": -133}  # of subnormals
DIGITS = {"float16": 11, "bfloat16": 8}

INDICES = torch.tensor([[0, 3, 3, 1], [3, 0, 3, 2]])


def region(low: str, **options: Any) -> Any:
    return amp.autocast(amp.Policy("O1", low, execution="simulated", **options), backend="torch")


def rounded(x: torch.Tensor, low: str) -> torch.Tensor:
    """``x`` rounded by NumPy, in float32."""
    with np.errstate(over="ignore"):
        return torch.from_numpy(x.detach().numpy().astype(NUMPY[low]).astype(np.float32))


# -- forward and backward, against float64


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


M, V, IMAGE, HEADS = (6, 8), (8,), (2, 4, 6, 6), (2, 2, 5, 4)
NUMERICS = {
    "linear": Case(F.linear, ((5, 6, 8), (7, 8), (7,))),
    "matmul": Case(torch.matmul, ((3, 6, 8), (8, 5))),
    "bmm": Case(torch.bmm, ((3, 6, 8), (3, 8, 5))),
    "einsum": Case(lambda x, y: torch.einsum("bij,kj->bki", x, y), ((2, 6, 8), (5, 8))),
    "conv2d": Case(lambda x, w, b: F.conv2d(x, w, b, padding=1), (IMAGE, (5, 4, 3, 3), (5,))),
    "conv_transpose2d": Case(F.conv_transpose2d, (IMAGE, (4, 3, 3, 3))),
    "scaled_dot_product_attention": Case(attention, (HEADS, HEADS, HEADS)),
    "softmax": Case(lambda x: x.softmax(-1), (M,)),
    "log_softmax": Case(lambda x: x.log_softmax(-1), (M,)),
    "layer_norm": Case(lambda x, w, b: F.layer_norm(x, V, w, b), (M, V, V)),
    "group_norm": Case(lambda x: F.group_norm(x, 2), (IMAGE,)),
    "batch_norm": Case(lambda x: F.batch_norm(x, None, None, training=True), (IMAGE,)),
    "gelu": Case(F.gelu, (M,)),
    "silu": Case(F.silu, (M,)),
    "relu": Case(F.relu, (M,)),
    "tanh": Case(torch.tanh, (M,)),
    "sigmoid": Case(torch.sigmoid, (M,)),
    "exp": Case(torch.exp, (M,)),
    "add": Case(lambda x, y: x + y, (M, V)),
    "subtract": Case(lambda x, y: torch.sub(x, y, alpha=0.7), (M, M)),
    "multiply": Case(lambda x, y: x * y, (M, M)),
    "divide": Case(lambda x, y: x / y, (M, M)),
    "addcmul": Case(lambda x, y, z: torch.addcmul(x, y, z, value=0.3), (M, M, M)),
    "mean": Case(lambda x: x.mean(0), (M,)),
    "sum": Case(lambda x: x.sum(), (M,)),
    "var": Case(lambda x: x.var(0), (M,)),
    "cumsum": Case(lambda x: x.cumsum(0), (M,)),
    "max_pool2d": Case(lambda x: F.max_pool2d(x, 3, stride=1), (IMAGE,)),
    "avg_pool2d": Case(lambda x: F.avg_pool2d(x, 3, stride=1), (IMAGE,)),
    "embedding": Case(lambda w: F.embedding(INDICES, w), (M,)),
    "gather": Case(lambda x: x.gather(1, INDICES), (M,)),
    "index": Case(lambda x: x[INDICES], (M,)),
    "concat": Case(lambda x, y: torch.cat([x, y]), (M, M)),
    "mse_loss": Case(F.mse_loss, (M, M)),
}


@pytest.mark.parametrize("op", NUMERICS)
def test_values_and_gradients_are_rounded_once(op: str, low: str) -> None:
    """Half a unit in the last place from float64's, but for what float32 itself is off.

    The inputs of the op, and the gradient that it is handed, are low already; so is the result, where
    the gradient is made of it.
    """
    case, dtype = NUMERICS[op], getattr(torch, low)
    denied = op != "index" and amp.Policy("O1", low).category(op) == "deny"
    inputs = [away_from_zero(torch.randn(shape)).to(dtype) for shape in case.shapes]
    inputs = [x.requires_grad_() for x in inputs]
    wide = [x.detach().double().requires_grad_() for x in inputs]
    with region(low, allow=[op] if denied else []):
        result = case.run(*inputs)
    assert result.dtype is dtype
    gradient = torch.randn(result.shape).to(dtype)
    found = torch.autograd.grad(result, inputs, gradient)
    exact = case.run(*wide)
    saved, exact = exact, exact.detach().clone()
    if op in simulation.SAVES_RESULT:
        saved.data.copy_(result.detach())
    expected = torch.autograd.grad(saved, wide, gradient.double())
    for value, reference in zip((result, *found), (exact, *expected), strict=True):
        assert value.dtype is dtype
        assert_rounded_once(value, reference, low)


def away_from_zero(x: torch.Tensor) -> torch.Tensor:
    """That quotients do not overflow."""
    return x + x.sign() / 16


def assert_rounded_once(found: torch.Tensor, exact: torch.Tensor, low: str) -> None:
    """Half a unit in ``low``'s last place at each value, and float32's error at the largest."""
    exact = exact.detach()
    _, exponent = torch.frexp(exact)
    place = torch.clamp(exponent - DIGITS[low], min=SMALLEST_EXPONENT[low]).double()
    allowed = 0.5 * torch.exp2(place) + 4e-6 * exact.abs().max()
    assert bool(((found.double() - exact).abs() <= allowed).all())


@pytest.mark.parametrize("inputs_are_low", [False, True])
def test_wider_inputs_are_rounded_and_their_gradients_too(low: str, inputs_are_low: bool) -> None:
    """NumPy's rule by hand: the casts of NumPy, the products of float64."""
    x, w, b = torch.randn(9, 16), torch.randn(5, 16), torch.randn(5)
    if inputs_are_low:
        x, w, b = (rounded(value, low).to(getattr(torch, low)) for value in (x, w, b))
    leaves = [value.requires_grad_() for value in (x, w, b)]
    gradient = torch.randn(9, 5).to(getattr(torch, low))
    with region(low):
        result = F.linear(*leaves)
    found = torch.autograd.grad(result, leaves, gradient)
    x64, w64, b64, g64 = (rounded(v.float(), low).double() for v in (x, w, b, gradient))
    assert_rounded_once(result, x64 @ w64.T + b64, low)
    exact = g64 @ w64, g64.T @ x64, g64.sum(0)
    for value, reference, leaf in zip(found, exact, leaves, strict=True):
        assert value.dtype is leaf.dtype
        assert torch.equal(rounded(value.float(), low), value.float())
        assert_rounded_once(value, reference, low)


EDGES = (0.0, -0.0, 2.0**-25, 1.01 * 2.0**-25, 3 * 2.0**-25, -(2.0**-24), 6e-6, 2.0**-14, 1e-39,
         65504, 65519.99, 65520, -65520, 1e30, 3.3895e38, 3.4e38, 1 + 2**-11, 1 + 3 * 2**-11,
         1 + 2**-8, 1 + 3 * 2**-8, np.inf, -np.inf, np.nan)  # fmt: skip


def test_rounding_is_numpys(low: str) -> None:
    """To nearest even, into subnormals, to inf from 65520; prelu with a weight of 1 is its input."""
    values = np.concatenate([np.float32(EDGES), np.random.default_rng(0).normal(0, 1e-6, 999)])
    x = torch.from_numpy(values.astype(np.float32)).requires_grad_()
    with region(low):
        found = F.prelu(x, torch.ones(1))
    expected = rounded(x, low)
    assert np.array_equal(bits(found), bits(expected))
    found.backward(torch.ones_like(found))


def bits(x: torch.Tensor) -> np.ndarray:
    """As int32 of their float32 values, every NaN the same."""
    wide = x.detach().float().numpy()
    return np.where(np.isnan(wide), np.float32(np.nan), wide).view(np.int32)


def test_results_and_gradients_overflow() -> None:
    x, w = torch.full((1, 4), 128.0), torch.full((2, 4), 128.0)
    w[1] = 127.9375
    w.requires_grad_()
    with region("float16"):
        y = F.linear(x, w)
    assert y.tolist() == [[np.inf, 65504.0]]  # 65536 and 65504
    (gradient,) = torch.autograd.grad(y, w, torch.tensor([[512.0, 511.0]]).half())
    assert gradient[0].tolist() == [np.inf] * 4
    assert gradient[1].tolist() == [65408.0] * 4


def test_sums_do_not_overflow_on_their_way() -> None:
    """Nor vanish: a mean is one op, whatever torch makes it of."""
    large, small = torch.full((4096,), 60000.0).half(), torch.full((4096,), 2.0**-18).half()
    with region("float16"):
        assert large.mean().item() == 60000.0
        assert torch.dot(small, small).item() == 2.0**-24
        assert (small * small).mean().item() == 0.0  # two ops, and 2^-36 is below float16


# -- torch's own kernels, where they are as good

UNARY: dict[str, Callable[..., Any]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "silu": F.silu,
    "neg": torch.neg,
    "abs": torch.abs,
    "clone": torch.clone,
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(5, 0),
    "tril": lambda x: x.view(256, -1).tril(),
    "triu": lambda x: x.view(256, -1).triu(),
    "repeat": lambda x: x.view(256, -1).repeat(3, 2),
    "masked_fill": lambda x: x.masked_fill(x > 1, -1.0),
}
BINARY: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "sub": torch.sub,
    "cat": lambda x, y: torch.cat([x, y]),
    "concat": lambda x, y: torch.concat([x, y]),
    "concatenate": lambda x, y: torch.concatenate([x, y]),
    "stack": lambda x, y: torch.stack([x, y]),
    "where": lambda x, y: torch.where(x > 0, x, y),
}


def test_every_kernel_that_is_trusted_is_tested() -> None:
    assert {*UNARY, *BINARY} == set(simulation.ROUNDS_ONCE)


@pytest.mark.parametrize("op", UNARY)
def test_torchs_kernels_round_once_on_every_number_there_is(op: str, low: str) -> None:
    everything = torch.arange(-(2**15), 2**15).to(torch.int16).view(getattr(torch, low))
    assert_kernel_is_float32_rounded(UNARY[op], [everything])


@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("broadcast", [False, True])
def test_torchs_kernels_of_two_tensors_round_once(op: str, broadcast: bool, low: str) -> None:
    x, y = (torch.randn(300, 71) * torch.exp(5 * torch.randn(300, 71)) for _ in range(2))
    if broadcast and op in ("add", "sub", "where"):
        y = y[:1]
    assert_kernel_is_float32_rounded(BINARY[op], [v.to(getattr(torch, low)) for v in (x, y)])


def assert_kernel_is_float32_rounded(run: Callable[..., Any], inputs: list[torch.Tensor]) -> None:
    """Bit by bit, forward and backward; the casts are torch's, which the tests above compare."""
    dtype = inputs[0].dtype
    native, wide = ([x.clone().requires_grad_() for x in inputs] for _ in range(2))
    found = run(*native)
    expected = run(*[x.float() for x in wide]).to(dtype)
    gradient = torch.randn(found.shape).to(dtype)
    found_gradients = torch.autograd.grad(found, native, gradient)
    expected_gradients = torch.autograd.grad(expected, wide, gradient)
    for a, b in zip((found, *found_gradients), (expected, *expected_gradients), strict=True):
        assert np.array_equal(bits(a), bits(b))


# -- the rules are those of the native region


def test_ops_that_no_list_names_but_autocast_casts_are_left_to_it(low: str) -> None:
    with region(low):
        assert torch.pinverse(torch.eye(3).to(getattr(torch, low))).dtype is torch.float32


@pytest.mark.parametrize("op", SPELLINGS)
def test_every_spelling_is_as_low_as_natively(op: str) -> None:
    kind, spellings = SPELLINGS[op]
    x = torch.rand(4, 4) + 0.1 if kind == "x" else torch.rand(1, 1, 6, 6)
    for low, (place, spelling) in product(NUMPY, enumerate(spellings)):
        for arrives in (x, x.to(getattr(torch, low))):
            with amp.autocast(amp.Policy("O1", low, execution="native"), backend="torch"):
                native = spelling(arrives).dtype
            with region(low):
                assert spelling(arrives).dtype is native, (low, place, arrives.dtype)


class Block(nn.Module):
    """Everything a transformer is made of, an embedding and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.convolution = nn.Conv1d(8, 8, 3, padding=1)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.cell = nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, 11)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        x = self.convolution(x.mT).mT
        x = x + self.attention(x, x, x)[0]
        x = self.cell(self.encoder(x))[0]
        return self.head(x * torch.sigmoid(x).mean(1, keepdim=True))


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_no_product_runs_low_forward_or_backward(level: str, low: str) -> None:
    """Below autograd and autocast; also inside of multi-head attention, where modes do not see."""
    model, tokens = Block(), torch.randint(0, 11, (2, 6))
    policy = amp.Policy(level, low, execution="simulated")
    model = amp.decorate(model, policy=policy)
    with Recorder() as recorder:
        _, grads = amp.value_and_grad(
            lambda m, x: F.cross_entropy(m(x).flatten(0, 1), x.flatten()),
            model,
            tokens,
            policy=policy,
        )
    assert all(grad.dtype is torch.float32 for grad in grads)
    assert {"addmm", "mm", "bmm", "convolution"} <= {name for name, _ in recorder.calls}
    kernels = {name for name, dtypes in recorder.calls if dtypes != {"float32"}}
    # Sums of two gradients are rounded, as is the sum of two values; those of views move numbers.
    trusted = {*simulation.ROUNDS_ONCE, "threshold_backward", "gelu_backward", "silu_backward"}
    moving = {"slice_backward", "select_backward", "new_zeros", "_unsafe_index", "add_"}
    assert kernels <= trusted | moving, kernels


def test_attention_is_its_parts_and_not_one_op(low: str) -> None:
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(3, 5, 8)
    with region(low):
        found = attention(x, x, x, need_weights=False)[0]
        projected = F.linear(x, attention.in_proj_weight, attention.in_proj_bias)
        split = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in projected.chunk(3, -1))
        heads = F.scaled_dot_product_attention(*split)
        expected = attention.out_proj(heads.transpose(1, 2).flatten(2))
    assert torch.equal(found, expected)


def test_a_bias_is_added_to_the_rounded_product_where_torch_does_so(low: str) -> None:
    """By hand: 2**digits + 1 is rounded to 2**digits, to which 1 is added; at once it is + 2."""
    big = 2.0 ** DIGITS[low]
    rows = torch.tensor([[[big, big], [1.0, 1.0]]]).transpose(1, 2)
    weight, bias = torch.ones(1, 2), torch.ones(1)
    for x, expected in ((rows, big), (rows.contiguous(), big + 2)):
        with torch.autocast("cpu", getattr(torch, low)):
            assert F.linear(x, weight, bias).flatten().tolist() == [expected] * 2
        with region(low):
            assert F.linear(x, weight, bias).flatten().tolist() == [expected] * 2


def test_scalars_are_rounded_and_do_not_decide(low: str) -> None:
    """As NumPy's adapter has it."""
    dtype = getattr(torch, low)
    x = torch.randn(300).to(dtype)
    with region(low):
        product = x * torch.tensor(0.3)
        assert product.dtype is dtype
        assert_rounded_once(product, x.double() * rounded(torch.tensor([0.3]), low).double(), low)
        x = x[:3]
        assert (x * torch.randn(3)).dtype is torch.float32
        assert (x * torch.randn(3).double()).dtype is torch.float64
        assert (x * 1j).dtype.is_complex


# -- what a region leaves alone


def test_what_works_in_place_stays_in_place(low: str) -> None:
    dtype = getattr(torch, low)
    with region(low):
        for run in (
            lambda x: x.mul_(0.3),
            lambda x: F.silu(x, inplace=True),
            lambda x: F.dropout(x, 0.0, True, True),
            lambda x: F.elu(x, 1.0, True),
            nn.ReLU(inplace=True),
        ):
            x = torch.randn(5).to(dtype)
            address = x.data_ptr()
            result = run(x)
            assert result.data_ptr() == address
            assert result.dtype is dtype
        out = torch.empty(3, 3).to(dtype)
        assert torch.mm(torch.eye(3).to(dtype), torch.eye(3).to(dtype), out=out) is out
        assert x.sum(dtype=torch.float32).dtype is torch.float32
        assert x.double().mean().dtype is torch.float64


def test_a_basic_index_is_a_view(low: str) -> None:
    x = torch.zeros(4, 4).to(getattr(torch, low))
    with region(low):
        for index in (0, slice(1, 3), (slice(None), 2), None, ..., (1, None)):
            x[index] += 1
            assert x[index]._is_view()
    assert x.sum() == 4 + 8 + 4 + 16 + 16 + 4


def test_writes_to_statistics_and_weights_are_kept(low: str) -> None:
    """Of a model that is low altogether, by no doing of ampbridge's."""
    dtype = getattr(torch, low)
    norm, embedding = nn.BatchNorm1d(4).to(dtype), nn.Embedding(3, 4, max_norm=1.0).to(dtype)
    with region(low), torch.no_grad():
        embedding.weight.fill_(2.0)
        assert norm(torch.randn(8, 4).to(dtype) + 3).dtype is dtype
        embedding(torch.tensor([1]))
    assert bool((norm.running_mean > 0.1).all())
    assert embedding.weight.norm(dim=1).tolist() == pytest.approx([4, 1, 4], rel=1e-2)


# -- regions around and inside


def test_regions_nest(low: str) -> None:
    x, native = torch.randn(4, 4), amp.Policy("O1", low, execution="native")

    def ran() -> set[str]:
        with Recorder() as recorder:
            torch.tanh(x @ x)
        return recorder.dtypes

    with region(low):
        assert ran() == {"float32"}
        with amp.autocast(native, backend="torch"):
            assert ran() == {low}
        with amp.autocast("O0", backend="torch"):
            y = (x @ x).to(getattr(torch, low))
            assert torch.tanh(y).dtype is torch.float32
        with torch.autocast("cpu", enabled=False):
            assert (x @ x).dtype is torch.float32
        assert ran() == {"float32"}
    with amp.autocast(native, backend="torch"), region(low):
        assert ran() == {"float32"}


def test_transforms(low: str) -> None:
    """Of values and of weights: ``vmap``, ``grad``, ``functional_call``, weights without storage."""
    layer, x = nn.Linear(3, 3), torch.randn(5, 3)
    values = dict(layer.named_parameters())

    def loss(values: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, values, row).float().square().sum()

    with region(low):
        together = loss(values, x)
        assert torch.equal(torch.vmap(layer)(x), layer(x))
        each = torch.vmap(torch.func.grad(loss), (None, 0))(values, x)
        stacked = {name: torch.stack([value] * 5) for name, value in values.items()}
        assert torch.allclose(torch.vmap(loss)(stacked, x).sum(), together)
        with FakeTensorMode(allow_non_fake_inputs=True):
            assert nn.Linear(3, 3)(torch.empty(2, 3)).dtype is getattr(torch, low)
        with torch.inference_mode():
            assert nn.Linear(3, 3)(x).dtype is getattr(torch, low)
    gradients = torch.autograd.grad(together, list(layer.parameters()))
    for name, gradient in zip(values, gradients, strict=True):
        difference = (each[name].detach().sum(0) - gradient).norm() / gradient.norm()
        assert float(difference) < (1e-2 if low == "float16" else 1e-1)


SAVING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": lambda x: torch.exp(-x.abs()),
    "sqrt": lambda x: torch.sqrt(x.abs() + 0.1),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
}


def test_every_op_that_saves_its_result_is_transformed() -> None:
    not_twice = {"cdist", "scaled_dot_product_attention"}  # by torch's own kernels
    assert set(SAVING) == set(simulation.SAVES_RESULT) - not_twice


@pytest.mark.parametrize("op", SAVING)
def test_a_gradient_through_transforms(op: str, low: str) -> None:
    """Of gradients by ``torch.func``, as in influence functions and meta learning; as natively."""
    torch.manual_seed(0)
    layer, x = nn.Linear(3, 4), torch.randn(5, 3)

    def loss(values: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
        return SAVING[op](torch.func.functional_call(layer, values, row)).float().pow(3).sum()

    def gradients(execution: Any) -> list[torch.Tensor]:
        values = dict(layer.named_parameters())
        with amp.autocast(amp.Policy("O1", low, execution=execution), backend="torch"):
            one = torch.func.grad(loss)(values, x[0])["weight"].float()
            each = torch.vmap(torch.func.grad(loss), (None, 0))(values, x)["weight"].float()
            second = torch.func.grad(lambda row: torch.func.grad(loss, 1)(values, row).sum())(x[1])
        total = one.square().sum() + each.square().sum() + second.float().square().sum()
        return [each.detach(), *torch.autograd.grad(total, list(layer.parameters()))]

    for found, native in zip(gradients("simulated"), gradients("native"), strict=True):
        difference = float((found - native).norm() / native.norm())
        assert difference < (1e-2 if low == "float16" else 6e-2)


def test_what_transforms_save_is_rounded(low: str) -> None:
    """The derivative of ``tanh`` is made from its rounded result, as outside of transforms."""
    x = torch.linspace(-3, 3, 50).to(getattr(torch, low))
    with region(low):
        mapped = torch.vmap(torch.func.grad(torch.tanh))(x)
        leaf = x.clone().requires_grad_()
        torch.tanh(leaf).sum().backward()
    assert leaf.grad is not None
    assert torch.equal(mapped, leaf.grad)


def test_second_derivatives(low: str) -> None:
    w = torch.randn(3, 3, requires_grad=True)
    x = torch.randn(5, 3)
    with region(low):
        loss = torch.tanh(F.linear(x, w)).square().sum()
    (gradient,) = torch.autograd.grad(loss, w, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), w)
    exact_w = rounded(w, low).double().requires_grad_()
    exact = torch.tanh(rounded(x, low).double() @ exact_w.T).square().sum()
    (exact_gradient,) = torch.autograd.grad(exact, exact_w, create_graph=True)
    (exact_second,) = torch.autograd.grad(exact_gradient.square().sum(), exact_w)
    tolerance = 1e-2 if low == "float16" else 1e-1
    assert float((second - exact_second).norm() / exact_second.norm()) < tolerance


# -- weights


def casts(run: Callable[[], Any], source: torch.Tensor) -> int:
    """How often ``source`` was cast."""
    count = 0

    class Counter(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            nonlocal count
            if func is torch.ops.aten._to_copy.default:
                count += args[0].data_ptr() == source.data_ptr()
            return func(*args, **(kwargs or {}))

    with Counter():
        run()
    return count


def test_a_weight_is_cast_once_in_a_region(low: str) -> None:
    weight = nn.Parameter(torch.randn(4, 4))
    x = torch.randn(2, 4)

    def three_uses() -> torch.Tensor:
        with region(low):
            return F.linear(F.linear(F.linear(x, weight), weight), weight).sum()

    assert casts(three_uses, weight) == 1
    gradient = torch.autograd.grad(three_uses(), weight)[0].double()
    exact = rounded(weight.float(), low).double().requires_grad_()
    wide = rounded(x, low).double()
    (expected,) = torch.autograd.grad((wide @ exact.T @ exact.T @ exact.T).sum(), exact)
    assert float((gradient - expected).norm() / expected.norm()) < (
        5e-3 if low == "float16" else 3e-2
    )


def test_a_weight_that_changes_is_cast_again(low: str) -> None:
    weight, x = nn.Parameter(torch.zeros(2, 2)), torch.ones(1, 2)
    with region(low):
        assert F.linear(x, weight).sum() == 0
        with torch.no_grad():
            weight.fill_(1.0)
        assert F.linear(x, weight).sum() == 4
        weight.data = torch.full((2, 2), 2.0)
        assert F.linear(x, weight).sum() == 8


def test_a_weight_that_was_used_without_gradients_gets_one_later(low: str) -> None:
    """What torch.autocast's own cache gets wrong."""
    weight, x = nn.Parameter(torch.ones(2, 2)), torch.ones(1, 2)
    with region(low):
        with torch.no_grad():
            F.linear(x, weight)
        with torch.inference_mode():
            F.linear(x, weight)
        F.linear(x, weight).sum().backward()
    assert weight.grad is not None


def test_a_weight_that_was_frozen_for_one_use(low: str) -> None:
    """It gets the gradients of the uses for which it was not, as under ``torch.autocast``."""
    weight, x = nn.Parameter(torch.randn(3, 3)), torch.randn(2, 3, requires_grad=True)

    def gradient(order: Sequence[bool], execution: Any) -> torch.Tensor | None:
        with amp.autocast(amp.Policy("O1", low, execution=execution), backend="torch"):
            losses = []
            for is_trained in order:
                weight.requires_grad_(is_trained)
                losses.append(F.linear(x, weight).float().square().sum())
        weight.requires_grad_()
        return torch.autograd.grad(sum(losses), weight, allow_unused=True)[0]

    assert gradient([False], "simulated") is None
    for order in ([False, True], [True, False], [True, False, True]):
        found, native = gradient(order, "simulated"), gradient(order, "native")
        assert found is not None
        assert native is not None
        assert float((found - native).norm() / native.norm()) < 1e-2


def test_a_backward_pass_keeps_one_copy_of_a_weight(low: str) -> None:
    """However often the weight is used, and the gradients of its uses are rounded and summed low."""
    dtype = getattr(torch, low)
    weight = nn.Parameter(torch.randn(5, 5))
    x = torch.randn(2, 5, requires_grad=True)
    saved: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.ndim == 2 and tensor.numel() == weight.numel():
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), region(low):
        results = [torch.matmul(x + k, weight) for k in range(6)]
    assert len(saved) == 1
    (found,) = torch.autograd.grad([y.float().sum() for y in results], weight)
    each = [
        rounded(rounded(x + k, low).double().sum(0, keepdim=True).expand(5, 5).T, low).to(dtype)
        for k in range(6)
    ]
    total = each[5]
    for k in reversed(range(5)):  # autograd's order
        total = total + each[k]
    assert torch.equal(found, total.to(weight.dtype))


def test_weights_in_transforms_leave_nothing_behind(low: str) -> None:
    layer, x = nn.Linear(3, 3), torch.randn(2, 3)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return layer(layer(x)).float().square().mean()

    def gradient(transform: Callable[[], object]) -> torch.Tensor:
        with region(low):
            transform()
            (found,) = torch.autograd.grad(loss(x), layer.weight)
        return found

    plain = gradient(lambda: None)
    for transform in (torch.func.grad, torch.vmap, torch.func.hessian):
        assert torch.equal(gradient(lambda transform=transform: transform(loss)(x)), plain)
    assert torch.equal(gradient(lambda: torch.func.jvp(loss, (x,), (x,))), plain)


def test_sparse_gradients_of_low_weights(low: str) -> None:
    dtype = getattr(torch, low)
    table = nn.Embedding(5, 2, sparse=True).to(dtype)
    with region(low):
        rows = table(torch.tensor([3, 3, 1, 3]))
    gradient = torch.randn(4, 2).to(dtype)
    (found,) = torch.autograd.grad(rows, table.weight, gradient)
    assert found.is_sparse
    assert found.dtype is dtype
    assert_rounded_once(found.to_dense()[3], gradient[[0, 1, 3]].double().sum(0), low)


# -- which execution


@pytest.mark.skipif(torch.cuda.is_available(), reason="auto is native on CUDA")
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("asked", ["auto", "native", "simulated"])
def test_auto_takes_what_was_asked_for_or_the_faster(
    fast: bool, asked: str, low: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution_module, "has_fast_kernels", lambda dtype: fast)
    monkeypatch.setattr(hardware, "asked_execution", lambda: asked)
    expected = asked if asked != "auto" else "native" if fast else "simulated"
    assert execution(amp.Policy("O1", low)) == execution(amp.Policy("O2", low)) == expected
    assert execution(amp.Policy("O1", low, execution="native")) == "native"
    assert execution(amp.Policy("O1", low, execution="simulated")) == "simulated"
    assert execution(amp.Policy("O1", low, lists="native")) == "native"
    assert execution(amp.Policy("O0", execution="simulated")) == "native"


def execution(policy: amp.Policy) -> str:
    return amp.backend("torch").execution(policy)


def test_the_processor_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = execution_module.has_fast_kernels.__wrapped__
    for feature, dtype in (("amx_fp16", "float16"), ("avx512_bf16", "bfloat16")):
        for has in (False, True):
            monkeypatch.setattr(torch.cpu, "get_capabilities", lambda has=has, f=feature: {f: has})
            assert kernels(dtype) is has


def test_native_lists_are_refused() -> None:
    policy = amp.Policy("O1", "bfloat16", lists="native", execution="simulated")
    message = (
        f"{policy!r}: what torch.autocast does by itself are torch's own kernels.\n"
        "Hint: Policy('O1', 'bfloat16', execution='simulated')"
    )
    for refused in (lambda: execution(policy), lambda: rules_for(policy, ("cpu",))):
        with pytest.raises(UnsupportedError) as error:
            refused()
        assert str(error.value) == message


def test_cuda_is_refused() -> None:
    """A model there, and a tensor there in a region that covers both."""
    message = (
        "execution='simulated': CUDA has low-precision kernels; torch simulates on the CPU alone.\n"
        "Hint: policy.replace(execution='auto'), or model.to('cpu')"
    )
    policy = amp.Policy("O1", execution="simulated")
    with pytest.raises(UnsupportedError) as error:
        rules_for(policy, ("cuda",))
    assert str(error.value) == message
    with FakeTensorMode(), listed(rules_for(policy, ("cpu", "cuda")), None):
        on_cuda = torch.empty(2, 2, device="cuda")
        with pytest.raises(UnsupportedError) as error:
            torch.mm(on_cuda, on_cuda)
    assert str(error.value) == message


def test_auto_says_so_once_a_process() -> None:
    script = """
import warnings, torch, ampbridge as amp
from ampbridge_torch.autocast import execution
execution.has_fast_kernels = lambda dtype: False
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as caught:
    for execution in ("simulated", "auto", "auto"):
        for dtype in ("float16", "bfloat16"):
            with amp.autocast(amp.Policy("O1", dtype, execution=execution), backend="torch"):
                torch.ones(2, 2) @ torch.ones(2, 2)
        print(execution, len(caught))
print(caught[0].category.__name__)
print(caught[0].message)
"""
    environment = {**os.environ, "AMPBRIDGE_CPU_EXECUTION": "auto"}
    finished = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    assert finished.stdout.splitlines() == [
        "simulated 0",
        "auto 1",
        "auto 1",
        "SimulationWarning",
        "float16 is simulated on this CPU: tensors are stored in it, each op computes in float32 and "
        "rounds once. Torch's own kernels are no faster here, or much slower.",
        "Hint: Policy('O1', 'float16', execution='simulated') asks for it; "
        "Policy('O1', 'float16', execution='native') runs torch's kernels.",
    ]


# -- compiled


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Ops that Inductor fuses into one kernel, with roundings that it would leave out."""
    y = F.linear(x, w)
    y = y * 1.1 - 0.3
    return (y * y).mean(0) / 3 + y


def step_of(model: nn.Module, policy: amp.Policy, compiled: bool) -> Any:
    return amp.train_step(
        lambda m, x: chain(x, m.weight).float().square().sum(),
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        policy=policy,
        scaler=amp.GradScaler(1.0),
        compile=compiled,
    )


def test_a_compiled_step_rounds_as_the_eager_one(low: str) -> None:
    """Bit by bit, in one graph."""
    model, x = nn.Linear(16, 24, bias=False), torch.randn(8, 16)
    twin = copy.deepcopy(model)
    policy = amp.Policy("O1", low, execution="simulated")
    torch._dynamo.utils.counters.clear()
    eager, compiled = (step_of(m, policy, c)(x) for m, c in ((model, False), (twin, True)))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert compiled.loss == pytest.approx(eager.loss, rel=1e-6)
    assert np.array_equal(bits(model.weight), bits(twin.weight))


def test_the_roundings_of_a_hand_compiled_function_are_warned_of(low: str) -> None:
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with region(low):
            torch.compile(chain, backend="eager")(x, w)
    said = {
        (str(w.message), w.filename) for w in caught if issubclass(w.category, AmpBridgeWarning)
    }
    hint = "torch._inductor.config.emulate_precision_casts = True"
    if torch.__version__ < "2.13":
        hint = "torch.compile(function, backend='aot_eager'), or torch 2.13"
    text = (
        "torch.compile leaves out roundings between the ops of this function, which is simulated: "
        f"it computes in more precision than was asked for.\nHint: {hint}"
    )
    assert said == {(text, __file__)}


@pytest.mark.skipif(torch.__version__ < "2.13", reason="Inductor's C++ code leaves out roundings")
def test_with_the_setting_a_hand_compiled_function_is_right(low: str) -> None:
    config = importlib.import_module("torch._inductor.config")
    x, w = torch.randn(32, 16), torch.randn(24, 16)
    with config.patch(emulate_precision_casts=True), region(low):
        compiled = torch.compile(chain, fullgraph=True)(x, w)
        assert torch.equal(compiled, chain(x, w))


def test_a_checkpoint_casts_its_weights_again(low: str) -> None:
    """What is recomputed belongs to another region, after the first one's casts are gone."""
    layer, x = nn.Linear(4, 4), torch.randn(2, 4)
    with region(low):
        first = layer(x)
        loss = ampbridge_torch.checkpoint(layer, first).sum() + first.sum()
    loss.backward()
    found, layer.weight.grad = layer.weight.grad, None
    with region(low):
        first = layer(x)
        loss = layer(first).sum() + first.sum()
    loss.backward()
    assert torch.equal(found, layer.weight.grad)


WITHOUT_KERNELS: dict[str, Any] = {
    "det": torch.linalg.det,
    "Tensor.det": lambda x: x.det(),
    "slogdet": lambda x: torch.linalg.slogdet(x)[1],
    "pinv": torch.linalg.pinv,
    "lu_factor": lambda x: torch.linalg.lu_factor(x)[0],
    "solve_triangular": lambda x: torch.linalg.solve_triangular(x, x, upper=True),
}


@pytest.mark.parametrize("name", WITHOUT_KERNELS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_has_no_low_kernel_is_simulated_natively_too(name: str, dtype: str) -> None:
    run, low = WITHOUT_KERNELS[name], getattr(torch, dtype)
    x = (torch.eye(4) * 2 + torch.rand(4, 4)).to(low).requires_grad_()
    with pytest.raises((RuntimeError, NotImplementedError)):
        run(x)
    with amp.autocast(amp.Policy("O1", dtype, execution="native"), "torch"):
        result = run(x)
    torch.testing.assert_close(result, run(x.float()).to(low), rtol=0, atol=0)
    result.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype is low


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("op", ["add", "add in place", "product", "dense", "scaled"])
@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_sparse_tensors_have_torchs_gradients(low: torch.dtype, op: str) -> None:
    """Of a sparse adjacency, or an adapter's update; their gradients arrive as strided ones."""

    def use(sparse: torch.Tensor) -> torch.Tensor:
        dense = torch.ones(4, 4, dtype=low)
        if op == "add":
            return dense + sparse
        if op == "add in place":
            return dense.add_(sparse)
        if op == "product":
            return sparse @ dense
        return sparse.to_dense() if op == "dense" else (sparse * 2.0).to_dense()

    found = []
    name = str(low).removeprefix("torch.")
    for region in (nullcontext(), amp.autocast(amp.Policy("O1", name, execution="simulated"))):
        values = torch.tensor([0.5, -1.5], dtype=low, requires_grad=True)
        with region:
            result = use(torch.sparse_coo_tensor([[0, 1], [1, 2]], values, (4, 4)))
        result.float().sum().backward()
        found.append((result.dtype, result.tolist(), values.grad.tolist()))
    assert found[0] == found[1]
