"""A rule that is accepted acts: every canonical op that torch has, denied and allowed.

The calls are those of tests/virtual_cuda, torch's own samples. Denied, an op that is handed low values
runs in float32; allowed and handed float32, it runs low, which its result shows where it is simulated.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from recorder import Recorder
from torch.utils._pytree import tree_leaves

import ampbridge as amp
from ampbridge.policies import op_table
from ampbridge_torch.autocast.rules import has_effect

sys.path.insert(0, str(Path(__file__).parents[1] / "virtual_cuda"))
import op_cases
from op_cases import Call

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning"
)  # of torch, about what the samples call

M = torch.rand(6, 8), torch.rand(8, 4)

# What `op_cases` leaves out.
MORE = [
    Call("fused_linear", "", lambda x, y: torch._addmm_activation(x[0, :4], x, y), M, {}),
    Call("fused_softmax_mask", "", lambda x: torch._masked_softmax(x, x > 0.5, 1, 0), M[:1], {}),
    Call("stop_gradient", "", lambda x: x.detach(), M[:1], {}),
    Call("slice", "[]", lambda x: x[1:, :2], M[:1], {}),
]
# The caller says in which dtype they compute, or they make no number from what they are handed.
TOLD = {"cast", "zeros_like", "ones_like", "full", "bincount", "one_hot"}
# Their kernels are on CUDA alone; tests/virtual_cuda has no cuDNN either.
ON_CUDA_ALONE = {"sync_batch_norm"}
# There is no complex number of two bfloat16.
NEVER_LOW = {"view_as_complex"}
# `torch.ops.aten` called directly, which no region reaches (mode.py).
NOT_REACHED = {"slice", "_upsample_bilinear2d_aa"}
# The samples compute more than the op, with what it returned or is handed. (What istft is handed is
# complex, and never cast.)
MORE_THAN_THE_OP = {"istft", "stop_gradient"}


def calls() -> Iterator[Call]:
    yield from MORE
    for call in op_cases.calls():
        told = any(isinstance(leaf, torch.dtype) for leaf in tree_leaves((call.args, call.kwargs)))
        if not (told or "with_dtype" in call.name or call.name in NOT_REACHED | MORE_THAN_THE_OP):
            yield call


@cache
def failures(kind: str) -> dict[str, str]:
    """The calls whose rule did not act, with what came instead."""
    found: dict[str, str] = {}
    for call in calls():
        if call.op not in (TOLD if kind == "deny" else TOLD | NEVER_LOW):
            wrong = _wrong(call, kind)
            if wrong:
                found[f"{call.op}: {call.name}"] = wrong
    return found


def _wrong(call: Call, kind: str) -> str:
    denied = kind == "deny"
    execution = "native" if denied else "simulated"
    policy = amp.Policy("O1", "bfloat16", execution=execution, **{kind: [call.op]})
    args, kwargs = call.on("cpu", torch.bfloat16 if denied else torch.float32)
    recorder = Recorder()
    try:
        with recorder, amp.autocast(policy, backend="torch"):
            result = call.run(*args, **kwargs)
    except (RuntimeError, NotImplementedError) as error:
        return str(error).partition("\n")[0]
    dtypes = {
        str(leaf.dtype).removeprefix("torch.")
        for leaf in tree_leaves(result)
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    }
    if denied:
        ran: Any = dtypes or recorder.dtypes
        return "" if "bfloat16" not in ran else f"ran in {sorted(ran)}"
    return "" if "bfloat16" in dtypes or not dtypes else f"returned {sorted(dtypes)}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["deny", "allow"])
def test_every_rule_acts(kind: str) -> None:
    assert failures(kind) == {}


@pytest.mark.slow
def test_every_op_that_has_an_effect_is_called() -> None:
    claimed = {op.name for op in op_table.ops().values() if has_effect(op)}
    assert claimed - TOLD - ON_CUDA_ALONE == {call.op for call in calls()} - TOLD | {"istft"}


def test_what_torch_lacks_is_said() -> None:
    for op in ("flash_attention", "conv_backward", "swiglu"):
        with (
            pytest.warns(amp.AmpBridgeWarning, match=f"deny=\\['{op}'\\] has no effect on torch"),
            amp.autocast(amp.Policy("O1", deny=[op]), backend="torch"),
        ):
            pass
