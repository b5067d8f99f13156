"""Policies as ``torch.autocast`` regions: read back, and run."""

import pytest
import torch

import ampbridge as amp
from ampbridge import Policy

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
on_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA has the lists of the policy")


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_region_of_the_dtype(dtype):
    region = Policy("O1", dtype, lists="native").to_native("torch")
    assert isinstance(region, torch.autocast)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    assert (region.device, region.fast_dtype, region._enabled) == (device, DTYPES[dtype], True)
    x = torch.ones(2, 2, device=device)
    with region:
        assert torch.get_autocast_dtype(device) is DTYPES[dtype]
        assert (x @ x).dtype is DTYPES[dtype]
    assert (x @ x).dtype is torch.float32


def test_float32_is_a_region_that_is_off():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.ones(2, 2, device=device)
    with torch.autocast(device), Policy("O0").to_native("torch"):
        assert (x @ x).dtype is torch.float32


@on_cpu
def test_on_a_cpu_a_warning_tells_of_its_lists():
    with pytest.warns(amp.AmpBridgeWarning, match="lists of its own for CPUs") as caught:
        Policy("O1").to_native("torch")
    assert caught[0].filename == __file__


@on_cpu
def test_whoever_gives_up_the_lists_is_not_warned():
    region = Policy("O1", "bfloat16", lists="paddle").to_native("torch", drop=["lists"])
    assert region.fast_dtype is torch.bfloat16


@pytest.mark.filterwarnings("ignore:User provided device_type of 'cuda'")
@pytest.mark.parametrize(
    "arguments, policy",
    [
        ({"device_type": "cpu"}, Policy("O1", "bfloat16", lists="native")),
        ({"device_type": "cpu", "dtype": torch.float16}, Policy("O1", lists="native")),
        ({"device_type": "cpu", "enabled": False}, Policy("O0")),
        ({"device_type": "cuda", "enabled": False}, Policy("O0")),
    ],
)
def test_back(arguments, policy):
    assert Policy.from_native(torch.autocast(**arguments)) == policy


def test_cuda_s_lists_are_the_policy_s(monkeypatch):
    """A region for CUDA turns itself off where there is none."""
    region = torch.autocast("cpu", dtype=torch.float16)
    monkeypatch.setattr(region, "device", "cuda")
    assert Policy.from_native(region) == Policy("O1", "float16")


@pytest.mark.parametrize("policy", [Policy("O0"), Policy("O1", "bfloat16", lists="native")])
def test_there_and_back(policy):
    if torch.cuda.is_available() and policy.level == "O1":
        policy = policy.replace(lists="torch")  # which is what CUDA's autocast does by itself
    assert Policy.from_native(policy.to_native("torch")) == policy


def test_the_older_spelling():
    with pytest.warns(FutureWarning):
        region = torch.cpu.amp.autocast(dtype=torch.bfloat16)
    assert Policy.from_native(region) == Policy("O1", "bfloat16", lists="native")


def test_what_is_no_region():
    with pytest.raises(amp.ArgumentTypeError, match=r"Linear is no torch.autocast"):
        Policy.from_native(torch.nn.Linear(1, 1))


def test_a_dtype_that_no_policy_has(monkeypatch):
    region = torch.autocast("cpu")
    monkeypatch.setattr(region, "fast_dtype", torch.float64)
    with pytest.raises(amp.UnsupportedError, match=r"no O1 in torch\.float64"):
        Policy.from_native(region)
