"""The lists that ampbridge has for torch are those of the installed torch."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest
import torch

import ampbridge as amp
from ampbridge.policies import op_table
from ampbridge_torch.autocast import merging
from ampbridge_torch.autocast.rules import native_list, rules_for

CHECKED_WITH = "2.13"
as_checked = pytest.mark.skipif(
    not torch.__version__.startswith(CHECKED_WITH), reason=f"the lists are torch {CHECKED_WITH}'s"
)


def registered(device: str) -> set[str]:
    """Without the kernels that regions add to torch's own; one takes the place of torch's."""
    key = f"Autocast{device}"
    added = merging._library._op_impls - {f"aten/binary_cross_entropy/{key}"}
    names = {
        name.partition("::")[2]
        for name in torch._C._dispatch_get_registrations_for_dispatch_key(key)
    }
    return {name.partition(".")[0] for name in names if f"aten/{name}/{key}" not in added}


def header_lists() -> dict[str, set[str]]:
    """The op lists that ``ATen/autocast_mode.h`` has for CUDA, by category."""
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    text = re.sub(r"\\\n", " ", header.read_text())
    found: dict[str, set[str]] = {}
    macros = {
        "AT_FORALL_LOWER_PRECISION_FP": "allow",
        "AT_FORALL_FP32": "deny",
        "AT_FORALL_FP32_SET_OPT_DTYPE": "deny",
        "AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE": "deny",
        "AT_FORALL_PROMOTE": "promote",
    }
    for macro, category in macros.items():
        body = re.search(rf"#define {macro}\(_\)(.*)", text)
        assert body, macro
        found.setdefault(category, set()).update(
            re.findall(r"_\((?:ADD_NS\()?(\w+)", body.group(1))
        )
    return found


@as_checked
@pytest.mark.parametrize("category", ["allow", "deny", "promote"])
def test_the_torch_set_is_what_cuda_autocast_lists(category: str) -> None:
    """By the header's macros: an aten name has the category of the canonical op it belongs to."""
    lists = op_table.op_list("torch", "O1", "float16")
    owners = op_table.native_names("aten")
    for name in header_lists()[category]:
        if name in owners:
            assert lists.category(owners[name][0]) == category, name
    unknown = {name for name in header_lists()[category] if name not in owners}
    assert not unknown


@as_checked
def test_the_header_is_all_that_is_registered() -> None:
    elsewhere = {"binary_cross_entropy", "cudnn_convolution", "cudnn_convolution_transpose"}
    listed = set().union(*header_lists().values()) | elsewhere
    assert registered("CUDA") - {"_cudnn_rnn"} == listed  # in CUDA builds alone


@as_checked
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_registered_op_is_on_a_native_list(device: str) -> None:
    lists = native_list(device)
    on_list = lists.allow | lists.deny | lists.promote
    owners = op_table.native_names("aten")
    absent = {
        name
        for name in registered(device.upper())
        if name in owners and not on_list.intersection(owners[name])
    }
    # Registered under an old name; the public functions call another op (torch.linalg.*), so they
    # are not on the list. The gated RNN cells are lists of ops to CPU autocast.
    assert absent <= {"pinverse", "triangular_solve", "lu_with_info", "_lu_with_info"}


def test_an_op_that_the_installed_torch_does_not_register_is_not_native() -> None:
    for device in ("cpu", "cuda"):
        lists = native_list(device)
        for op in lists.allow | lists.deny | lists.promote:
            names = set(op_table.ops()[op].names.get("aten", ()))
            recorded = {n for n in names if n in recorded_registrations(device)}
            assert recorded <= registered(device.upper()), op


def recorded_registrations(device: str) -> set[str]:
    import json

    data = json.loads((files("ampbridge_torch.autocast") / "native_lists.json").read_text())
    return set(data["registered"][device])


def test_the_default_policy_adds_nothing_to_cuda_autocast() -> None:
    for dtype in ("float16", "bfloat16"):
        if torch.__version__.startswith(CHECKED_WITH):
            assert not rules_for(amp.Policy("O1", dtype), ("cuda",)).table
    assert not rules_for(amp.Policy("O1", lists="native"), ("cpu",)).table
    assert not rules_for(amp.Policy("O1", lists="native"), ("cuda",)).table


def test_denying_what_cuda_autocast_denies_adds_nothing() -> None:
    assert not rules_for(amp.Policy("O1", deny=["softmax"], allow=["linear"]), ("cuda",)).table


@pytest.mark.skipif(torch.cuda.is_available(), reason="the CPU build's own fact")
def test_ops_without_a_16_bit_kernel_are_left_to_cpu_autocast() -> None:
    x = torch.rand(8, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError):
        torch.fft.rfft(x)
    with amp.autocast("O1:bfloat16", backend="torch"):
        assert torch.fft.rfft(x).dtype is torch.complex64
