"""Regions on a device of an extension, whose autocast has lists of its own.

Expected dtypes are those of ``autocast.cpp`` of the device for its own lists, and of torch's header
``ATen/autocast_mode.h`` for CUDA's, which are the default.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ampbridge as amp
from ampbridge_torch.autocast import rules
from ampbridge_torch.autocast.rules import rules_for

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
# With the dtype under the device's own lists, and under CUDA's; None: as the input arrives.
OPS: dict[str, tuple[Callable[[Tensor], Tensor], str | None, str | None]] = {
    "linear": (lambda x: F.linear(x, x), "low", "low"),
    "matmul": (lambda x: x @ x, "low", "low"),
    "mv": (lambda x: torch.mv(x, x[0]), None, "low"),
    "gelu": (lambda x: F.gelu(x), "low", None),
    "tanh": (lambda x: torch.tanh(x), "float32", None),
    "softmax": (lambda x: x.softmax(-1), "float32", "float32"),
    "cumsum": (lambda x: x.cumsum(0), None, "float32"),
    "reciprocal": (lambda x: x.reciprocal(), None, "float32"),
    "relu": (lambda x: F.relu(x), None, None),
    "einsum": (lambda x: torch.einsum("ij,jk->ik", x, x), "low", "low"),
}  # fmt: skip


def dtype_of(kind: str | None, x: Tensor, low: torch.dtype) -> torch.dtype:
    return {"low": low, "float32": torch.float32, None: x.dtype}[kind]


@pytest.fixture(params=["bfloat16", "float16"])
def low(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("arrives", ["float32", "low"])
def test_the_lists_are_the_policy_s_whatever_the_device_s_own_say(
    name: str, arrives: str, low: str
) -> None:
    op, own, cudas = OPS[name]
    dtype = DTYPES[low]
    x = torch.rand(4, 4, device="virtual", dtype=dtype if arrives == "low" else torch.float32)
    with torch.autocast("virtual", dtype=dtype):
        assert op(x).dtype == dtype_of(own, x, dtype)
    with amp.autocast(amp.Policy("O1", low)):
        assert op(x).dtype == dtype_of(cudas, x, dtype)
    with amp.autocast(amp.Policy("O1", low, lists="native")):
        assert op(x).dtype == dtype_of(own, x, dtype)
    with torch.autocast("virtual", dtype=dtype), amp.autocast("O0"):
        assert op(x).dtype == torch.float32


def test_mixed_inputs_are_promoted(low: str) -> None:
    """By the lists of CUDA; the device's own leave ``atan2`` to torch, which promotes as well."""
    x = torch.rand(4, 4, device="virtual")
    with amp.autocast(amp.Policy("O1", low)):
        assert torch.cat([x, x.to(DTYPES[low])]).dtype == torch.float32
        assert torch.addcmul(x, x.to(DTYPES[low]), x).dtype == torch.float32
        assert torch.dot(x[0], x[1].to(DTYPES[low])).dtype == torch.float32


def test_a_region_covers_the_cpu_too() -> None:
    x = torch.rand(4, 4)
    with amp.autocast(amp.Policy("O1", "bfloat16")):
        assert (x @ x).dtype == (x.virtual() @ x.virtual()).dtype == torch.bfloat16
        assert x.cumsum(0).dtype == x.virtual().cumsum(0).dtype == torch.float32
    assert not torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("virtual")


def test_what_the_device_casts_is_read_from_torch() -> None:
    assert rules.cast_by("virtual") >= {"matmul", "gelu", "tanh", "layer_norm", "softmax"}
    assert "cumsum" not in rules.cast_by("virtual")
    assert not rules_for(amp.Policy("O1", lists="native"), ("virtual",)).table


def test_where_torch_does_not_tell_what_is_registered_nothing_is_left_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules.cast_by.cache_clear()
    monkeypatch.setattr(rules._private, "registered_for_autocast", lambda device_type: None)
    assert {"relu", "gelu"} <= rules.cast_by("virtual")
    rules.cast_by.cache_clear()


def test_a_checkpoint_is_recomputed_under_the_lists(low: str) -> None:
    layer = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.5)).virtual()
    x = torch.rand(3, 4, device="virtual")
    found = []
    for run in (layer, lambda x: checkpoint(layer, x, use_reentrant=False)):
        torch.manual_seed(3)
        with amp.autocast(amp.Policy("O1", low)):
            y = run(x)
        assert y.dtype == DTYPES[low]
        layer.zero_grad()
        y.float().sum().backward()
        found.append([p.grad.clone() for p in layer.parameters()])
    assert all(map(torch.equal, *found))


def test_simulation_is_refused() -> None:
    policy = amp.Policy("O1", execution="simulated")
    x = torch.ones(2, 2, device="virtual")
    expected = r"the device 'virtual' has low-precision kernels; .*\nHint: .*model\.to\('cpu'\)"
    with amp.autocast(policy), pytest.raises(amp.UnsupportedError, match=expected):
        x @ x
    with pytest.raises(amp.UnsupportedError, match=expected):
        amp.value_and_grad(lambda m, x: m(x).sum(), nn.Linear(2, 2).virtual(), policy=policy)(x)


def test_torch_s_own_autocast_and_back(low: str) -> None:
    with pytest.warns(amp.AmpBridgeWarning, match="lists of its own for virtual"):
        native = amp.Policy("O1", low).to_native("torch")
    assert native.device == "virtual"
    assert native.fast_dtype == DTYPES[low]
    assert amp.Policy.from_native(native) == amp.Policy("O1", low, lists="native")
