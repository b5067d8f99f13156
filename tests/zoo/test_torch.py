"""Models for torch: transformers, timm, diffusers, peft, optimizers."""

from __future__ import annotations

import pytest
import torch
import torchvision_ops
from in_torch import Torch
from properties import LOW, Properties, assert_equal
from zoo import Subject, parameters

import ampbridge as amp

declared = torchvision_ops.declare()  # ahead of what imports torchvision

import diffusers_models  # noqa: E402
import optimizers  # noqa: E402
import peft_models  # noqa: E402
import timm_models  # noqa: E402
import transformers_models  # noqa: E402

SPECIMENS = [
    *transformers_models.SPECIMENS,
    *timm_models.SPECIMENS,
    *diffusers_models.SPECIMENS,
    *peft_models.SPECIMENS,
    *optimizers.SPECIMENS,
]
QUICK = {"bert", "llama", "t5", "clip", "timm-resnet", "unet"}


@pytest.fixture(scope="module", params=parameters(SPECIMENS, QUICK))
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return Subject(request.param, Torch(), tmp_path_factory.mktemp("zoo"))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


class TestTorch(Properties):
    @pytest.mark.parametrize("low", LOW)
    def test_native_lists_are_the_native_loop(self, subject: Subject, low: str) -> None:
        run, native = subject.train(amp.Policy("O1", low, lists="native")), subject.native(low)
        assert run.scales == native.scales
        assert run.losses == native.losses
        assert_equal(run.weights, native.weights)
