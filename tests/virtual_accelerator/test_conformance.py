"""The conformance suite on a device of an extension of torch's; all of it in the nightly profile."""

from __future__ import annotations

import pytest
import torch
import traced_graphs
from nightly import NIGHTLY

from ampbridge_testing import BackendConformance
from ampbridge_testing.decorating import KeepConformance
from ampbridge_testing.gradients import GradientConformance
from ampbridge_testing.regions import CastConformance, RegionConformance
from ampbridge_testing.scaler import GradScalerConformance, StoredGradientsConformance
from ampbridge_testing.updates import (
    ClipConformance,
    ScaleStoreConformance,
    StepOrSkipConformance,
    UnscaleConformance,
)
from ampbridge_torch import _private
from ampbridge_torch.testing import TorchHarness

HARNESS = TorchHarness(device="virtual")


@pytest.fixture(autouse=True)
def _without_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which makes code for the devices that it knows."""
    monkeypatch.setattr(_private, "inductor", traced_graphs.aot_eager)


if NIGHTLY:

    class TestAll(BackendConformance):
        harness = HARNESS

else:

    class TestRegions(CastConformance, RegionConformance):
        harness = HARNESS

    class TestSteps(
        GradientConformance,
        UnscaleConformance,
        ClipConformance,
        StepOrSkipConformance,
        ScaleStoreConformance,
    ):
        harness = HARNESS

    class TestModels(KeepConformance):
        harness = HARNESS

    class TestScalers(GradScalerConformance, StoredGradientsConformance):
        harness = HARNESS


def test_it_is_on_that_device() -> None:
    assert HARNESS.array([1.0]).device == torch.device("virtual:0")
