"""A schedule changes what runs at its steps, eager and compiled, on layers built already.

Read from the values: those of an op in low precision can be held by 16 bits, others cannot.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.nn import functional as F
from paddle_reference import is_representable, normal

import ampbridge as amp

X, LABELS = normal(4, 8), np.array([0, 1, 2, 0])

# sin follows the parameter, which is read low at O2 alone; the norm is denied, and the head is kept.
LOW = {
    "O0": {"sin": False, "first": False, "gelu": False, "norm": False, "head": False},
    "O1": {"sin": False, "first": True, "gelu": True, "norm": False, "head": False},
    "O2": {"sin": True, "first": True, "gelu": True, "norm": False, "head": False},
}
LEVELS = ("O0", "O1", "O2", "O0", "O2", "O1", "O0")
STEPS_EACH = 2


class Net(nn.Layer):
    """Returns the result of each op by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = self.create_parameter(
            [8], default_initializer=nn.initializer.Uniform(-1.0, 1.0)
        )
        self.first, self.norm, self.head = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, x: Any) -> dict[str, Any]:
        sin = paddle.sin(self.phase)
        first = self.first(x + sin)
        gelu = F.gelu(first)
        norm = self.norm(gelu)
        return {"sin": sin, "first": first, "gelu": gelu, "norm": norm, "head": self.head(norm)}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("low", ["bfloat16", "float16"])
def test_what_runs_changes_at_the_steps_of_the_schedule(low: str, compiled: bool) -> None:
    """Compiled, with one program for each policy, however often it comes back."""
    traces: list[str] = []

    def loss_fn(model: nn.Layer, x: Any, labels: Any) -> Any:
        if not paddle.in_dynamic_mode():
            traces.extend([low])  # Paddle warns of append() in what it traces
        results = model(x)
        return F.cross_entropy(results["head"], labels), results

    model = Net()
    policies = {
        "O0": amp.Policy("O0"),
        "O1": amp.Policy("O1", low, keep=["head"]),
        "O2": amp.Policy("O2", low, keep=["head"]),
    }
    plan = [(i * STEPS_EACH, policies[level]) for i, level in enumerate(LEVELS)]
    step = amp.train_step(
        loss_fn,
        model,
        paddle.optimizer.Momentum(0.01, momentum=0.9, parameters=model.parameters()),
        policy=amp.Schedule(plan),
        compile=compiled,
    )
    for level in LEVELS:
        for _ in range(STEPS_EACH):
            result = step(X, LABELS)
            assert result.applied
            seen = {op: is_representable(y.numpy(), low) for op, y in result.aux.items()}
            assert seen == LOW[level]
    assert len(traces) == (3 if compiled else 0)
