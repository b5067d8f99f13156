"""The simulation on the CPU is what a region on CUDA computes, op by op: dtypes, values, gradients.

``differing_ops.json`` names the ops that differ, each with its reason, and the calls of which the
device and torch's ``op_db`` disagree whether CUDA has a 16-bit kernel.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import compared
import op_cases
import pytest
import torch

from ampbridge.policies import op_table

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # torch warns of half of what it samples
    pytest.mark.slow,
]


@cache
def named() -> dict[str, Any]:
    return json.loads((Path(__file__).parent / "differing_ops.json").read_text("utf-8"))


# Their lists bring no op into another kernel than torch's do.
IN_NIGHTLY = dict.fromkeys((("paddle", "float16"), ("tensorflow", "bfloat16")), pytest.mark.nightly)


@pytest.mark.parametrize(
    "lists, low", [pytest.param(*run, marks=IN_NIGHTLY.get(run, ())) for run in compared.RUNS]
)
def test_ops_are_cudas_or_named(lists: str, low: str) -> None:
    found = compared.findings(lists, low)
    ops = named()["ops"]
    not_named = {
        f"{op}: {kind} ({found.where[op, kind]})"
        for op, kinds in found.differing.items()
        for kind in kinds
        if kind not in ops.get(op, {}) and op not in named()["unsteady"]
    }
    assert not_named == set()


@pytest.mark.nightly
def test_what_is_named_differs() -> None:
    found = [compared.findings(*run).differing for run in compared.RUNS]
    differing = {op: frozenset().union(*(each.get(op, ()) for each in found)) for op in found[0]}
    equal = {
        f"{op}: {kind}"
        for op, kinds in named()["ops"].items()
        for kind in kinds
        if kind not in differing.get(op, ())
    }
    assert equal == set()


def test_each_reason_stands_once_and_is_used() -> None:
    reasons, ops = named()["reasons"], named()["ops"]
    assert {reason for kinds in ops.values() for reason in kinds.values()} == set(reasons)
    assert set(ops) | set(named()["unsteady"]) <= set(op_table.ops())
    assert {kind for kinds in ops.values() for kind in kinds} <= set(compared.KINDS)


@pytest.mark.nightly
def test_every_op_of_torch_is_called_or_named() -> None:
    assert op_cases.without_calls() == set(named()["not called"])


@pytest.mark.nightly
def test_the_device_refuses_what_cuda_has_no_kernels_for() -> None:
    """Outside of regions, where an op runs in the dtype that arrives."""
    found: dict[tuple[str, torch.dtype], set[bool]] = {}
    expected: dict[tuple[str, torch.dtype], bool] = {}
    for call in op_cases.calls():
        for low in (torch.float16, torch.bfloat16):
            if call.refused is not None:
                key = call.name, low
                found.setdefault(key, set()).add(_runs_on_the_device(call, low))
                expected[key] = low not in call.refused
    different = {key[0] for key, ran in found.items() if ran != {expected[key]}}
    assert different == set(named()["kernels"])


def _runs_on_the_device(call: op_cases.Call, low: torch.dtype) -> bool:
    try:
        args, kwargs = call.on("cuda", low)
        call.run(*args, **kwargs)
    except (RuntimeError, NotImplementedError):
        return False
    return True
