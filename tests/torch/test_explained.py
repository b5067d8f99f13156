"""``amp.explain(policy, model, x)`` of a ResNet of torchvision's: held against torch's own dispatch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torchvision_ops
from recorder import run_eager

import ampbridge as amp

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# The kernels of its ops, by aten's names.
NAMES = {
    "convolution": "conv2d",
    "native_batch_norm": "batch_norm",
    "cudnn_batch_norm": "batch_norm",
    "relu_": "relu",
    "max_pool2d_with_indices": "max_pool2d",
    "add_": "add",
    "mean": "adaptive_avg_pool2d",
    "addmm": "linear",
}


@pytest.fixture(scope="module")
def resnet() -> Any:
    declared = torchvision_ops.declare()
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    yield models.resnet18(num_classes=10).to(DEVICE).train()
    del declared


@pytest.fixture
def x() -> torch.Tensor:
    return torch.rand(2, 3, 32, 32, device=DEVICE)


def test_the_ops_are_those_that_torch_dispatches(resnet: Any, x: torch.Tensor) -> None:
    region = torch.autocast(DEVICE, torch.bfloat16)
    ran = run_eager(resnet, [x], region).firsts
    expected = Counter((NAMES[name], dtype) for name, dtype in ran if name in NAMES)
    found = amp.explain(amp.Policy("O1", "bfloat16", lists="native"), resnet, x)
    assert {(row.op, row.dtype): row.calls for row in found.ops} == expected
    assert expected["conv2d", "bfloat16"] == 20
    assert {row.by for row in found.ops} == {"native"}


def test_the_model_is_as_before(resnet: Any, x: torch.Tensor) -> None:
    before = {name: value.clone() for name, value in resnet.state_dict().items()}
    amp.explain("O2:bfloat16", resnet, x)
    after = resnet.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(parameter.grad is None for parameter in resnet.parameters())


def test_a_kept_layer_is_the_reason(resnet: Any, x: torch.Tensor) -> None:
    policy = amp.Policy("O1", "bfloat16", keep=["fc"], deny=["relu"], execution="native")
    rows = {row.op: row for row in amp.explain(policy, resnet, x).ops}
    assert rows["linear"][:4] == ("linear", 1, "float32", "kept layer")
    assert rows["relu"][2:4] == ("float32", "your deny")
    assert rows["conv2d"][1:4] == (20, "bfloat16", "O1 allow")


def test_an_error_of_the_model_s_own_is_raised_as_it_is(resnet: Any) -> None:
    with pytest.raises(RuntimeError, match="Expected 3D"):
        amp.explain("O2:bfloat16", resnet, torch.rand(3, device=DEVICE))
    assert amp.backend("torch").decoration(resnet, None) is None
