"""A schedule changes what runs at its steps, on layers built already.

Read from the values: those of an op in low precision can be held by 16 bits, others cannot.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import autograd.numpy as anp
import ml_dtypes
import numpy as np
import pytest

import ampbridge as amp
from ampbridge_numpy import nn, optim

X = np.random.default_rng(0).standard_normal((4, 8), np.float32)
LABELS = np.array([0, 1, 2, 0])
DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}

# sin follows the parameter, which is read low at O2 alone; the norm is denied, and the head is kept.
LOW = {
    "O0": {"sin": False, "first": False, "gelu": False, "norm": False, "head": False},
    "O1": {"sin": False, "first": True, "gelu": True, "norm": False, "head": False},
    "O2": {"sin": True, "first": True, "gelu": True, "norm": False, "head": False},
}
LEVELS = ("O0", "O1", "O2", "O0", "O2", "O1", "O0")
STEPS_EACH = 2


class Net(nn.Module):
    """Returns the result of each op by its name."""

    def __init__(self) -> None:
        self.phase = nn.Parameter(np.linspace(-1, 1, 8, dtype=np.float32) / 3)
        self.first, self.norm = nn.Linear(8, 16, rng=0), nn.LayerNorm(16)
        self.head = nn.Linear(16, 3, rng=1)

    def forward(self, x: Any) -> dict[str, Any]:
        sin = anp.sin(self.phase)
        first = self.first(x + sin)
        gelu = nn.gelu(first)
        norm = self.norm(gelu)
        return {"sin": sin, "first": first, "gelu": gelu, "norm": norm, "head": self.head(norm)}


def loss_fn(model: nn.Module, x: Any, labels: Any) -> Any:
    results = model(x)
    return nn.cross_entropy(results["head"], labels), results


def test_a_switch_that_rounds_what_was_trained_says_so_once():
    stochastic = amp.Policy("O2", "bfloat16", masters="stochastic", slots="bfloat16")
    model = Net()
    optimizer = optim.AdamW(model.parameters())
    plan = amp.Schedule([(0, "O1:bfloat16"), (1, "O2:bfloat16"), (2, stochastic)])
    step = amp.train_step(loss_fn, model, optimizer, policy=plan)
    step(X, LABELS)
    step(X, LABELS)
    with (
        pytest.warns(
            amp.AmpBridgeWarning, match=r"weights were trained in float32, under Policy\('O2'"
        ),
        pytest.warns(amp.AmpBridgeWarning, match="slots are float32. slots='bfloat16' rounds"),
    ):
        step(X, LABELS)
    amp.undecorate(model, optimizer)
    step(X, LABELS)


def test_a_copy_and_a_load_go_on_over_a_switch_to_weights_in_16_bits(tmp_path):
    plan = amp.Schedule(
        [(0, "O2:bfloat16"), (1, amp.Policy("O2", "bfloat16", masters="stochastic"))]
    )
    model = Net()
    step = amp.train_step(loss_fn, model, optim.SGD(model.parameters(), 0.1), policy=plan)
    beginning, before = tmp_path / "beginning", model.parameters()[0].copy()
    step.save(beginning)
    step(X, LABELS)
    copied, words = deepcopy(step), "weights were trained in float32, under Policy"
    for each in (step, copied):
        with pytest.warns(amp.AmpBridgeWarning, match=words):
            each(X, LABELS)
        assert each(X, LABELS).applied
    step.load(beginning)
    assert np.array_equal(model.parameters()[0], before)
    step(X, LABELS)
    step.save(tmp_path / "switch")
    other = Net()
    resumed = amp.train_step(loss_fn, other, optim.SGD(other.parameters(), 0.1), policy=plan)
    resumed.load(tmp_path / "switch")
    with pytest.warns(amp.AmpBridgeWarning, match="weights were trained in float32"):
        resumed(X, LABELS)


@pytest.mark.parametrize("low", DTYPES)
def test_what_runs_changes_at_the_steps_of_the_schedule(low: str) -> None:
    model = Net()
    policies = {
        "O0": amp.Policy("O0"),
        "O1": amp.Policy("O1", low, keep=["head"]),
        "O2": amp.Policy("O2", low, keep=["head"]),
    }
    plan = [(i * STEPS_EACH, policies[level]) for i, level in enumerate(LEVELS)]
    sgd = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step = amp.train_step(loss_fn, model, sgd, policy=amp.Schedule(plan))
    for level in LEVELS:
        for _ in range(STEPS_EACH):
            result = step(X, LABELS)
            assert result.applied
            assert {op: fits(y, low) for op, y in result.aux.items()} == LOW[level]


def fits(values: np.ndarray, low: str) -> bool:
    assert values.dtype == np.float32
    return bool(np.array_equal(values.astype(DTYPES[low]).astype(np.float32), values))
