"""A training step waits for the device no more often than torch's own loop."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from waiting import CASES, Case, by_warnings, count, count_by_hand, on_the_page, table

import ampbridge as amp
from ampbridge_rehearse import virtual_cuda

# By hand. Fused optimizers decide on the device; others need one answer of it.
WAITS = {
    "O1 float16, scaler": (1, 0),
    "O1 bfloat16": (1, 0),
    "O2 float16, scaler": (1, 0),
    "clip_norm=1.0": (1, 0),
    "accumulate=4": (1, 0),
    "a learning-rate schedule": (1, 1),  # which moves on applied steps alone
    "name_overflows=True": (1, 0),
    "an overflow": (3, 0),  # inf or NaN? And the counters, for the alarms
    "result.loss logged": (2, 1),
    "result.applied logged": (2, 2),
    "loss, applied, scale, reason logged": (4, 5),
}
EXPECTED = {
    f"{title}, {optimizer}": waits
    for title, both in WAITS.items()
    for optimizer, waits in zip(("AdamW", "fused AdamW"), both, strict=True)
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_the_host_waits_as_often_as_said(case: Case) -> None:
    assert count(case).waits == EXPECTED[case.title]


@pytest.mark.parametrize("case", [c for c in CASES if c.native], ids=lambda case: case.title)
def test_no_more_often_than_torchs_own_loop(case: Case) -> None:
    assert count(case).waits <= count_by_hand(case).waits


def test_a_step_that_the_host_decides_makes_no_further_pass_over_the_gradients() -> None:
    for case in CASES:
        if case.native and "accumulate" not in case.title and "fused" not in case.title:
            assert count(case).passes == count_by_hand(case).passes


def test_nor_more_than_one_further_kernel() -> None:
    """One keeps the old scale readable."""
    for case in CASES:
        if case.native and "accumulate" not in case.title and "fused" not in case.title:
            assert count(case).kernels <= count_by_hand(case).kernels + 1


def test_inf_and_nan_are_told_apart() -> None:
    for value, reason in ((torch.inf, "inf"), (torch.nan, "nan")):
        for fused in (False, True):
            layer = nn.Linear(2, 1, device="cuda")
            optimizer = torch.optim.AdamW(layer.parameters(), fused=fused)
            x = torch.ones(1, 2, device="cuda")
            step = amp.train_step(
                lambda model, factor: model(x).sum() * factor,  # noqa: B023
                layer,
                optimizer,
                policy="O1:bfloat16",
            )
            result = step(value)
            assert (result.applied, result.reason) == (False, reason)
            assert step(1.0).applied


def test_a_step_on_the_device_does_not_speak_of_the_cpu() -> None:
    """There is nothing to simulate."""
    layer = nn.Linear(2, 1, device="cuda")
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step = amp.train_step(
            lambda model, x: model(x).sum(),
            layer,
            optimizer,
            policy=amp.Policy("O1", "float16", deny=["dot"]),
        )
        assert step(torch.ones(1, 2, device="cuda")).step == 1


def test_the_scale_stays_on_the_device() -> None:
    layer = nn.Linear(2, 1, device="cuda")
    optimizer = torch.optim.AdamW(layer.parameters(), fused=True)
    scaler = amp.GradScaler(1024.0)
    step = amp.train_step(
        lambda m, x: m(x).sum(), layer, optimizer, policy="O1:float16", scaler=scaler
    )
    x = torch.ones(1, 2, device="cuda")
    step(x)
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = [step(x) for _ in range(5)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [result.scale for result in results] == [1024.0] * 5


def test_the_page_has_this_table() -> None:
    """If not: python tests/virtual_cuda/waiting.py --write"""
    assert on_the_page() == table()
    assert virtual_cuda.is_installed()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_warnings_tell_of_as_many_waits_as_the_device(case: Case) -> None:
    """What a real device has is its warnings."""
    assert count(case, by_warnings).waits == EXPECTED[case.title]
