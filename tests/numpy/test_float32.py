"""``Policy(float32=...)``: NumPy's float32 is IEEE's, and there is no other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ampbridge as amp
from ampbridge_numpy import nn, optim

X = np.ones((3, 4), np.float32)


def step(policy: amp.Policy) -> Any:
    model = nn.Linear(4, 2, rng=np.random.default_rng(0))
    optimizer = optim.SGD(model.parameters(), 0.1)
    made = amp.train_step(lambda model, x: (model(x) ** 2).mean(), model, optimizer, policy=policy)
    made(X)
    return model


def test_ieee_is_what_it_is() -> None:
    trained = [step(amp.Policy("O1", "bfloat16", float32=each)) for each in ("default", "ieee")]  # type: ignore[arg-type]
    assert np.array_equal(*(model.weight for model in trained))


@pytest.mark.parametrize("level", ["O0", "O1"])
def test_tf32_is_refused(level: Any) -> None:
    policy = amp.Policy(level, "bfloat16", float32="tf32")
    said = r"^numpy: this adapter cannot compute float32 products in TF32.\nHint: float32='ieee'$"
    with pytest.raises(amp.UnsupportedError, match=said):
        step(policy)
    with pytest.raises(amp.UnsupportedError, match=said):
        amp.autocast(policy, "numpy").__enter__()
    if level == "O1":
        with pytest.raises(amp.UnsupportedError, match=said):
            amp.decorate(nn.Linear(4, 2), policy=policy)


def test_o0_decorates_nothing_that_could_hold_it() -> None:
    with pytest.raises(
        amp.ArgumentError, match=r"(?s)would have no effect.*Hint: with amp\.autocast\("
    ):
        amp.decorate(nn.Linear(4, 2), policy=amp.Policy("O0", float32="ieee"))
