"""Warnings point to the user's line."""

from __future__ import annotations

import paddle
import pytest
from paddle import nn
from user_lines import OF_THE_CORE, check_that_the_last_line_is_warned_of

import ampbridge as amp
from ampbridge_paddle.autocast import execution

NAMES = {
    "paddle": paddle,
    "model": lambda: nn.Linear(2, 2),
    "low": lambda: nn.Linear(2, 2).to(dtype="bfloat16"),
    "optimizer": lambda model: paddle.optimizer.SGD(0.1, parameters=model.parameters()),
    "loss_fn": lambda model, x: model(x).mean(),
    "x": paddle.ones((3, 2)),
    "inf": paddle.ones((3, 2)) * float("inf"),
}

OF_PADDLE = {
    "a compiled layer in a region": """
m = paddle.jit.to_static(model())
with amp.autocast("O1:bfloat16", "paddle"):
    m(x)""",
    "an op that Paddle has not": """
with amp.autocast(amp.Policy(deny=["addmv"]), "paddle"): pass""",
    "one, in a step": """
m = model()
step = amp.train_step(loss_fn, m, optimizer(m), policy=amp.Policy(deny=["weight_norm"]))
step(x)""",
    "a list in which Paddle reads nothing": """
amp.Policy.from_native({"auto_cast": {"custom_black_list": {"matmul"}}})""",
    "a scaler that is off": """
off = amp.GradScaler.like("paddle", enabled=False).to_native("paddle")
amp.GradScaler.from_native(off)""",
}

SIMULATED_BY = {
    "a region": """
with amp.autocast("O1", "paddle"): pass""",
    "a step": """
m = model()
step = amp.train_step(loss_fn, m, optimizer(m), policy="O1")
step(x)""",
    "a decorated model": """
m = amp.decorate(model(), policy="O1")
m(x)""",
}


@pytest.mark.parametrize("kind", OF_THE_CORE)
def test_of_the_core(kind: str) -> None:
    check_that_the_last_line_is_warned_of(OF_THE_CORE[kind], NAMES)


@pytest.mark.parametrize("kind", OF_PADDLE)
def test_of_paddle(kind: str) -> None:
    check_that_the_last_line_is_warned_of(OF_PADDLE[kind], NAMES)


@pytest.mark.parametrize("kind", SIMULATED_BY)
def test_of_simulation(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "_warned", False)
    check_that_the_last_line_is_warned_of(SIMULATED_BY[kind], NAMES, amp.SimulationWarning)
