"""Warnings point to the user's line."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn, optim
from user_lines import OF_THE_CORE, check_that_the_last_line_is_warned_of

import ampbridge as amp
from ampbridge.policies import hardware
from ampbridge_torch.autocast import execution

NAMES = {
    "torch": torch,
    "nn": nn,
    "copy": copy,
    "model": lambda: nn.Linear(2, 2),
    "low": lambda: nn.Linear(2, 2).bfloat16(),
    "optimizer": lambda model: optim.SGD(model.parameters(), 0.1),
    "loss_fn": lambda model, x: model(x).mean(),
    "x": torch.ones(3, 2),
    "inf": torch.ones(3, 2) * torch.inf,
}

OF_TORCH = {
    "a copy of a model at O2": """
m = amp.decorate(model(), policy=amp.Policy("O2", "bfloat16", execution="native"))
copy.deepcopy(m)""",
    "a copy of one that holds it": """
holder = torch.nn.Sequential(model())
amp.decorate(holder, policy=amp.Policy("O2", "bfloat16", execution="native"))
copied = copy.deepcopy([holder])""",
    "a model in 16 bits, in a step at O0": """
m = low()
step = amp.train_step(lambda m, x: m(x.bfloat16()).mean(), m, optimizer(m), policy="O0")
step(x)""",
    "a model put in 16 bits between steps": """
m = model()
step = amp.train_step(loss_fn, m, optimizer(m), policy="O1:bfloat16")
step(x); step(x)
m.bfloat16()
step(x); step(x)""",
    "a layer replaced between steps": """
m = nn.Sequential(model(), model())
step = amp.train_step(loss_fn, m, optimizer(m), policy="O0")
step(x); step(x)
m[1] = model()
step(x); step(x)""",
    "lists that torch has not": """
amp.Policy("O1").to_native("torch")""",
}

# Under policies of their own: the rules of each are made once.
SIMULATED_BY = {
    "a region": """
with amp.autocast(amp.Policy(deny=["sin"]), "torch"): pass""",
    "a step": """
m = model()
step = amp.train_step(loss_fn, m, optimizer(m), policy=amp.Policy(deny=["cos"]))
step(x)""",
    "a decorated model": """
amp.decorate(model(), policy=amp.Policy(deny=["tan"]))""",
}


@pytest.mark.parametrize("kind", OF_THE_CORE)
def test_of_the_core(kind: str) -> None:
    check_that_the_last_line_is_warned_of(OF_THE_CORE[kind], NAMES)


@pytest.mark.parametrize("kind", OF_TORCH)
def test_of_torch(kind: str) -> None:
    if torch.cuda.is_available() and "lists" in kind:
        pytest.skip("CUDA's lists are here")
    check_that_the_last_line_is_warned_of(OF_TORCH[kind], NAMES)


@pytest.mark.parametrize("kind", SIMULATED_BY)
def test_of_simulation(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "_warned", False)
    monkeypatch.setattr(execution, "simulates", lambda policy, device_types: True)
    monkeypatch.setattr(hardware, "asked_execution", lambda: "auto")
    check_that_the_last_line_is_warned_of(SIMULATED_BY[kind], NAMES, amp.SimulationWarning)
