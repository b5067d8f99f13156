"""Wrong calls of Policy.auto, doctor and explain, word by word as in test_messages.py."""

import subprocess
import sys

import pytest

import ampbridge as amp
from ampbridge.adapters import registry
from ampbridge.adapters.roles.probing import Device


def message(kind, call):
    with pytest.raises(amp.AmpBridgeError) as caught:
        call()
    assert type(caught.value) is kind
    return str(caught.value)


@pytest.fixture
def in_use(toy, monkeypatch):
    monkeypatch.setattr(registry, "names_in_use", lambda: ["toyframework"])
    return toy


@pytest.mark.usefixtures("in_use")
def test_a_device_that_is_not_there():
    assert message(amp.ArgumentError, lambda: amp.Policy.auto("tpu")) == (
        "Passed device='tpu'; toyframework has 'toy:0' or 'cpu' here.\n"
        "Hint: Policy.auto(device='toy:0')"
    )


@pytest.mark.usefixtures("in_use")
@pytest.mark.parametrize("device", ["H100", 0])
def test_no_name_of_a_device(device):
    assert message(amp.ArgumentError, lambda: amp.Policy.auto(device)) == (
        f"Passed device={device!r}; allowed are None, 'cpu', 'cuda', 'cuda:0', 'gpu', 'gpu:0', 'tpu' "
        "or 'tpu:0'.\nHint: Policy.auto(device='toy:0')"
    )


def test_no_framework_to_judge_for():
    code = "import ampbridge as amp; amp.Policy.auto()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.endswith(
        "BackendNotFoundError: Which framework? What a device favours depends on the framework that "
        f"uses it, and of {registry.backend_names()} this process has imported none.\n"
        "Hint: import torch; policy = Policy.auto()\n"
    )


def test_frameworks_that_differ(in_use, monkeypatch):
    class Other(in_use.Backend):
        name = "otherframework"
        hardware = (Device("cpu", "cpu", "A CPU"),)

    amp.register_backend("otherframework", Other)
    monkeypatch.setattr(registry, "names_in_use", lambda: ["otherframework", "toyframework"])
    assert message(amp.BackendNotFoundError, amp.Policy.auto) == (
        "Which framework? This process has imported several, which favour different policies: "
        "otherframework 'O0', toyframework 'O1:bfloat16'.\nHint: Policy.parse('O1:bfloat16')"
    )


def test_a_model_of_no_framework(toy):
    assert message(amp.BackendNotFoundError, lambda: amp.doctor([])) == (
        f"No registered framework knows builtins.list; registered are {registry.backend_names()}.\n"
        "Hint: name it, backend='torch', or pass a native model, optimizer or tensor."
    )


def test_an_unknown_feature(toy):
    table = amp.explain("O1", "toyframework")
    assert message(amp.ArgumentError, lambda: table.feature("o1")) == (
        "No feature 'o1'; allowed are 'O1'.\nHint: did you mean 'O1'?"
    )
    assert message(amp.ArgumentError, lambda: table.feature("precision")) == (
        "No feature 'precision'; allowed are 'O1'.\nHint: print(explanation)"
    )
