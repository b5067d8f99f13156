"""Whole trainings by the simulation are those on CUDA, bit for bit: losses, scales, skipped steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from trajectories import STEPS, WAYS, Training

from ampbridge import workloads
from ampbridge.workloads import digits, weights

pytestmark = pytest.mark.slow

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


class Differing(NamedTuple):
    """A model whose losses are not the device's to the last bit.

    Attributes:
        why: the one op that is the reason.
        avoid: changes the model so that the op makes no difference.
        dtypes, ways: in which it shows within these steps.
    """

    why: str
    avoid: Callable[[nn.Module], object]
    dtypes: tuple[str, ...] = LOW
    ways: tuple[str, ...] = WAYS


def normalize_contiguous(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.GroupNorm):
            module.register_forward_pre_hook(lambda _, inputs: inputs[0].contiguous())


def scale_by_one(model: nn.Module) -> None:
    model.logit_scale.requires_grad_(False).zero_()  # its exp is 1, also in 16 bits


def attend_without_dropout(model: nn.Module) -> None:
    for module in model.modules():
        if hasattr(module, "attn_dropout"):
            module.attn_dropout.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):  # T5's
            module.dropout = 0.0


ATTENTION_WITH_DROPOUT = (
    "the gradient of attention with dropout: the kernel multiplies and sums in another order than "
    "the composite that the CPU takes then; the last bit of float32, and so one in 9,000 in float16"
)
DIFFERING = {
    "gpt2": Differing(ATTENTION_WITH_DROPOUT, attend_without_dropout, ("float16",)),
    "t5": Differing(ATTENTION_WITH_DROPOUT, attend_without_dropout, ("float16",), ("O2",)),
    "clip": Differing(
        "a 16-bit tensor times a float32 one of no dimension, logit_scale.exp(): the simulation "
        "rounds both, the device the product alone",
        scale_by_one,
    ),
    "unet": Differing(
        "group_norm of a channels-last input: CUDA makes it contiguous first, the CPU sums it as it "
        "lies; the last bits of float32",
        normalize_contiguous,
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [name for names in MODELS.values() for name in names])
def test_a_model_of_the_zoo(name: str, way: str, low: str) -> None:
    training = specimen(name)
    differing = DIFFERING.get(name)
    if differing is not None and low in differing.dtypes and way in differing.ways:
        found, expected = training.pair(way, low, "fused")
        assert found[1:] == expected[1:]  # scales, and what was applied
        # Whether a last bit shows in these losses goes by the CPU's kernels.
        assert np.allclose(found.losses, expected.losses, rtol=0.05), differing.why
        training = changed(training, differing.avoid)
    found, expected = training.pair(way, low, "fused")
    assert found == expected


def changed(training: Training, change: Callable[[nn.Module], object]) -> Training:
    def build() -> nn.Module:
        model = training.build()
        change(model)
        return model

    return training._replace(build=build)


def specimen(name: str) -> Training:
    """A model that somebody else wrote, with random weights (tests/zoo)."""
    import importlib

    _declared()
    table = next(table for table, names in MODELS.items() if name in names)
    models = importlib.import_module(table).SPECIMENS
    found = next(each for each in models if each.name == name)
    torch.manual_seed(0)
    return Training(name, found.build, found.loss, found.batches(STEPS))


@cache
def _declared() -> object:
    """Kept: the packages import their parts, and so torchvision, as they are used."""
    import torchvision_ops

    return torchvision_ops.declare()
