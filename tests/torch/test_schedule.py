"""A schedule changes the dtypes that reach the kernels, at its steps, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from recorder import Recorder
from torch import Tensor, nn

import ampbridge as amp

X, Y = torch.linspace(-1, 1, 32).reshape(4, 8), torch.tensor([0, 1, 2, 0])

OPS = ("sin", "addmm", "gelu", "native_layer_norm")
# sin follows the parameter, which is low at O2 alone; the norm is denied, and the head is kept.
DTYPES = {
    "O0": ("float32", "float32", "float32", "float32", "float32"),
    "O1": ("float32", "low", "low", "float32", "float32"),
    "O2": ("low", "low", "low", "float32", "float32"),
}
FORWARD = {level: list(zip((*OPS, "addmm"), seen, strict=True)) for level, seen in DTYPES.items()}
BACKWARD = {"O0": {"float32"}, "O1": {"float32", "low"}, "O2": {"float32", "low"}}

LEVELS = ("O0", "O1", "O2", "O0", "O2", "O1", "O0")
STEPS_EACH = 2


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.phase = nn.Parameter(torch.zeros(8))
        self.first, self.norm, self.head = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(F.gelu(self.first(x + self.phase.sin()))))


class Watch:
    """What the last step ran, and how many graphs of the loss were made so far."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.graphs = 0

    def compile(self, function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        """``torch.compile`` with a backend that runs its graphs as they are, and watches."""

        def backend(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
            self.graphs += "cross_entropy" in graph.code

            def run(*arguments: Any) -> Any:
                with self.recorder:
                    return graph(*arguments)

            return run

        return torch_compile(function, backend=backend)

    def step(
        self, step: amp.TrainStep, batch: tuple[Tensor, ...], low: str, compiled: bool
    ) -> list[tuple[str, str]]:
        """(op, dtype of its inputs) in the order in which one step ran them."""
        self.recorder = Recorder()
        # Compiled code is not entered under a recorder; there its graphs have it.
        with nullcontext() if compiled else self.recorder:
            assert step(*batch).applied
        named = {low: "low"}
        return [
            (op, " and ".join(named.get(d, d) for d in sorted(dtypes)))
            for op, dtypes in self.recorder.calls
        ]


torch_compile = torch.compile


def scheduled_step(low: str, device: str, compiled: bool) -> amp.TrainStep:
    model = Net().to(device)
    policies = {
        "O0": amp.Policy("O0"),
        "O1": amp.Policy("O1", low, keep=["head"], execution="native"),
        "O2": amp.Policy("O2", low, keep=["head"], execution="native"),
    }
    plan = [(i * STEPS_EACH, policies[level]) for i, level in enumerate(LEVELS)]
    return amp.train_step(
        lambda model, x, y: F.cross_entropy(model(x), y),
        model,
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        policy=amp.Schedule(plan),
        compile=compiled,
    )


def test_eager_kernels_change_at_the_steps_of_the_schedule(low: str, device: str) -> None:
    watch, step = Watch(), scheduled_step(low, device, compiled=False)
    for level in LEVELS:
        for _ in range(STEPS_EACH):
            ran = watch.step(step, (X.to(device), Y.to(device)), low, compiled=False)
            assert [pair for pair in ran if pair[0] in OPS] == FORWARD[level]
            assert {dtype for op, dtype in ran if op == "mm"} == BACKWARD[level]
            assert ("gelu_backward", dict(FORWARD[level])["gelu"]) in ran


@pytest.mark.slow
def test_compiled_graphs_change_at_the_steps_of_the_schedule(
    low: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One graph for each policy, however often it comes back."""
    watch = Watch()
    monkeypatch.setattr(torch, "compile", watch.compile)
    step = scheduled_step(low, device, compiled=True)
    for level in LEVELS:
        for _ in range(STEPS_EACH):
            ran = watch.step(step, (X.to(device), Y.to(device)), low, compiled=True)
            assert [pair for pair in ran if pair[0] in OPS] == FORWARD[level]
    assert watch.graphs == 3
