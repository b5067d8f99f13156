"""Whole trainings by the simulation are those on CUDA, bit for bit: losses, scales, skipped steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from trajectories import STEPS, WAYS, Training

from ampbridge import workloads
from ampbridge.workloads import digits, weights

LOW = ("float16", "bfloat16")


def workload(name: str) -> Training:
    """One of ampbridge's own."""
    kind = workloads.DIGITS[name]
    of_torch: Any = workloads.of_backend("torch")
    examples, _ = digits.load(kind)
    return Training(
        name,
        lambda: getattr(of_torch, kind)(weights.make(kind)),
        of_torch.loss,
        [tuple(map(np.asarray, batch)) for batch in digits.batches(examples, 32, STEPS)],
    )


@pytest.mark.parametrize("implementation", ["fused", "foreach"])
@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", workloads.NAMES)
def test_a_workload(name: str, way: str, low: str, implementation: str) -> None:
    found, expected = workload(name).pair(way, low, implementation)
    assert found == expected
    assert len(set(found.losses)) > 1
    assert any(found.applied)
    if low == "float16":
        assert not found.applied[0], "no overflow to begin with"


MODELS = {
    "transformers_models": ("bert", "gpt2", "llama", "t5", "vit", "clip"),
    "timm_models": ("timm-resnet", "timm-convnext", "timm-vit"),
    "diffusers_models": ("unet", "dit"),
}
DIFFERING = {
    "llama": "attention of grouped heads, whose kernels CUDA composes of several",
    "clip": "normalization by a quotient and a norm, whose gradients CUDA composes of several kernels",
    "unet": "group_norm of a channels-last input, which the CPU sums in another order, in float32",
}
"""Models whose losses are not CUDA's to the last bit, by the op that is the reason."""


@pytest.mark.nightly
@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [name for names in MODELS.values() for name in names])
def test_a_model_of_the_zoo(name: str, way: str, low: str) -> None:
    training = specimen(name)
    found, expected = training.pair(way, low, "fused")
    assert found.scales == expected.scales
    assert found.applied == expected.applied
    if name in DIFFERING:
        assert found.losses != expected.losses
        assert np.allclose(found.losses, expected.losses, rtol=0.05), DIFFERING[name]
    else:
        assert found.losses == expected.losses


def specimen(name: str) -> Training:
    """A model that somebody else wrote, with random weights (tests/zoo)."""
    import importlib

    import torchvision_ops

    declared = torchvision_ops.declare()
    table = next(table for table, names in MODELS.items() if name in names)
    models = importlib.import_module(table).SPECIMENS
    del declared
    found = next(each for each in models if each.name == name)
    torch.manual_seed(0)
    return Training(name, found.build, found.loss, found.batches(STEPS))
