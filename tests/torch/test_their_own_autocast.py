"""What torch's own ``test_autocast.py`` and CPU autocast tests check of ``torch.autocast``, of ours.

Written anew in our names. Each op of their lists that is looked at stands for its list; that all of them
are as CUDA's is in ``test_spellings.py``. What differs by design is said in docs/limits.md.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ampbridge as amp

pytestmark = pytest.mark.filterwarnings("ignore::ampbridge.errors.SimulationWarning")

LOWS = {"O1:float16": torch.float16, "O1:bfloat16": torch.bfloat16}
x = torch.randn(4, 4)

LOW_OPS: dict[str, Callable[[], Tensor]] = {
    "mm": lambda: torch.mm(x, x),
    "matmul": lambda: x @ x,
    "addmm": lambda: torch.addmm(x, x, x),
    "bmm": lambda: torch.bmm(x[None], x[None]),
    "linear": lambda: F.linear(x, x),
    "conv1d": lambda: F.conv1d(x[None], x[:, :, None]),
    "conv2d": lambda: F.conv2d(x[None, :, :, None], x[:, :, None, None]),
    "einsum": lambda: torch.einsum("ij,jk", x, x),
    "chain_matmul": lambda: torch.linalg.multi_dot([x, x, x]),
}
FULL_OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda low: low.softmax(-1),
    "log_softmax": lambda low: F.log_softmax(low, -1),
    "layer_norm": lambda low: F.layer_norm(low, (4,)),
    "exp": torch.exp,
    "pow": lambda low: low.abs().pow(2.0),
    "sum": torch.sum,
    "norm": torch.norm,
    "mse_loss": lambda low: F.mse_loss(low, low + 1),
    "cosine_similarity": lambda low: F.cosine_similarity(low, low),
    "cumsum": lambda low: low.cumsum(0),
}
UNLISTED_OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "neg": torch.neg,
    "mul": lambda low: low * low,
    "transpose": lambda low: low.t(),
    "max": lambda low: low.max(0).values,
}
WIDEST_OPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "cat": lambda a, b: torch.cat([a, b]),
    "stack": lambda a, b: torch.stack([a, b]),
    "addcmul": lambda a, b: torch.addcmul(a, b, b),
    "atan2": torch.atan2,
    "where": lambda a, b: torch.where(a > 0, a, b),
}


@pytest.fixture(params=LOWS, ids=str)
def policy(request: Any) -> str:
    return str(request.param)


@pytest.mark.parametrize("op", LOW_OPS)
def test_ops_that_run_low(op: str, policy: str) -> None:
    with amp.autocast(policy, "torch"):
        assert LOW_OPS[op]().dtype == LOWS[policy]


@pytest.mark.parametrize("op", FULL_OPS)
def test_ops_that_run_in_float32(op: str, policy: str) -> None:
    with amp.autocast(policy, "torch"):
        assert FULL_OPS[op](x.to(LOWS[policy])).dtype == torch.float32


@pytest.mark.parametrize("op", UNLISTED_OPS)
def test_ops_that_follow_their_input(op: str, policy: str) -> None:
    with amp.autocast(policy, "torch"):
        assert UNLISTED_OPS[op](x.to(LOWS[policy])).dtype == LOWS[policy]
        assert UNLISTED_OPS[op](x).dtype == torch.float32


@pytest.mark.parametrize("op", WIDEST_OPS)
def test_ops_that_take_the_widest_type(op: str, policy: str) -> None:
    low = x.to(LOWS[policy])
    with amp.autocast(policy, "torch"):
        assert WIDEST_OPS[op](low, x).dtype == torch.float32
        assert WIDEST_OPS[op](low, low).dtype == LOWS[policy]


def test_ignored_types(policy: str) -> None:
    """float64, whole numbers and what is no tensor are left alone."""
    double, whole = x.double(), torch.arange(4)
    with amp.autocast(policy, "torch"):
        assert (double @ double).dtype == torch.float64
        assert (whole @ whole).dtype == torch.int64
        assert double.sum().dtype == torch.float64
        assert whole.sum().dtype == torch.int64


def test_a_layer_under_autocast(policy: str) -> None:
    layer = nn.Linear(4, 4)
    with amp.autocast(policy, "torch"):
        out = layer(x)
    assert out.dtype == LOWS[policy]
    out.sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_layers(kind: Any, policy: str) -> None:
    torch.manual_seed(0)
    layer, batch = kind(4, 8), torch.randn(3, 2, 4)
    exact, _ = layer(batch)
    if amp.backend("torch").execution(amp.Policy.parse(policy)) == "native":
        # torch takes oneDNN's layer where the CPU has the dtype's instructions, which it may lack there.
        try:
            with torch.autocast("cpu", LOWS[policy]):
                layer(batch)
        except RuntimeError as error:
            pytest.skip(f"torch itself on this CPU: {error}")
    with amp.autocast(policy, "torch"):
        out, _ = layer(batch)
    torch.testing.assert_close(out.float(), exact, atol=2e-2, rtol=2e-2)
    out.float().sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


def test_binary_cross_entropy_is_not_run_low(policy: str) -> None:
    """CUDA's autocast forbids it; CPU's, and ours, run it in float32."""
    p = torch.rand(4).to(LOWS[policy])
    with amp.autocast(policy, "torch"):
        assert F.binary_cross_entropy(p.float(), p.float()).dtype == torch.float32


def test_regions_nest(policy: str) -> None:
    with amp.autocast(policy, "torch"):
        with amp.autocast("O0", "torch"):
            assert (x @ x).dtype == torch.float32
            with amp.autocast(policy, "torch"):
                assert (x @ x).dtype == LOWS[policy]
        assert (x @ x).dtype == LOWS[policy]
    assert (x @ x).dtype == torch.float32


def test_an_exception_ends_a_region(policy: str) -> None:
    with pytest.raises(ValueError, match="mine"), amp.autocast(policy, "torch"):
        raise ValueError("mine")
    assert (x @ x).dtype == torch.float32


def test_as_a_decorator(policy: str) -> None:
    @amp.autocast(policy, "torch")
    def run() -> Tensor:
        return x @ x

    assert [run().dtype for _ in range(2)] == [LOWS[policy]] * 2


def test_threads_do_not_share_a_region(policy: str) -> None:
    seen: list[torch.dtype] = []
    with amp.autocast(policy, "torch"):
        thread = threading.Thread(target=lambda: seen.append((x @ x).dtype))
        thread.start()
        thread.join()
    assert seen == [torch.float32]


def test_no_cast_weight_outlives_a_region(policy: str) -> None:
    layer, kept = nn.Linear(4, 4), []
    with amp.autocast(policy, "torch"):
        for _ in range(3):
            kept.append(weakref.ref(layer(x)))
    gc.collect()
    assert [ref() for ref in kept] == [None] * 3


def test_without_gradients_first_and_with_them_then(policy: str) -> None:
    """A weight cast under ``no_grad`` must not be taken for the pass that needs its gradient."""
    layer = nn.Linear(4, 4)
    with amp.autocast(policy, "torch"):
        with torch.no_grad():
            layer(x)
        loss = layer(x).float().sum()
    loss.backward()
    assert layer.weight.grad is not None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_custom_function_s_own_region(dtype: torch.dtype) -> None:
    """``custom_fwd(cast_inputs=torch.float32)`` runs in float32, whatever the region."""

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
        def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
            a, b = ctx.saved_tensors
            return grad @ b.t(), a.t() @ grad

    a = x.clone().requires_grad_()
    with torch.autocast("cpu", dtype), amp.autocast("O0", "torch"):
        out = Product.apply(a, x)
    assert out.dtype == torch.float32
    out.sum().backward()
    assert a.grad is not None


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant: bool, policy: str) -> None:
    """The second forward pass casts as the first did."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    grads = []
    for checkpointed in (True, False):
        model.zero_grad()
        given = x.clone().requires_grad_()
        with amp.autocast(policy, "torch"):
            if checkpointed:
                out = torch.utils.checkpoint.checkpoint(model, given, use_reentrant=reentrant)
            else:
                out = model(given)
        out.float().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert len(grads[0]) == 4
    for one, other in zip(*grads, strict=True):
        assert torch.equal(one, other)


# -- what is called otherwise here


@pytest.mark.parametrize(
    ("arguments", "settings", "text"),
    [
        (("cuda",), {"dtype": torch.float16}, "no argument 'dtype'"),
        (("cuda",), {}, "takes no device"),
        ((), {"device_type": "cpu"}, "no argument 'device_type'"),
        ((), {"enabled": False}, "no argument 'enabled'"),
        ((), {"cache_enabled": False}, "no argument 'cache_enabled'"),
    ],
)
def test_torch_s_own_arguments_are_told_of(arguments: Any, settings: Any, text: str) -> None:
    with pytest.raises(amp.ArgumentTypeError, match=rf"(?s){text}.*Hint: amp\.autocast\("):
        amp.autocast(*arguments, **settings)
