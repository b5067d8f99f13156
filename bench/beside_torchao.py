"""``masters="stochastic"`` beside torchao's ``bf16_stochastic_round``: one update, and trainings.

    python bench/beside_torchao.py

An update takes a million equal weights a part of the way from 1 to the next lower bfloat16. z is the
distance of their mean from the update in float64, in standard errors. Then Adam's average of squares after
100 steps with gradients of zero, over what it is in float64. The trainings are of digits-mlp, 300 steps, from
the same weights and batches: the mean of the last 20 losses, over eight seeds.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from typing import Any

import page
import torch
from measuring import machine
from page import Findings, Row
from torch import Tensor, nn, optim

import ampbridge as amp
from ampbridge import workloads

try:
    from torchao.optim import _AdamW
except ImportError:
    sys.exit("torchao is not installed. Hint: pip install torchao")

UNIT = 2.0**-8  # between bfloat16 numbers below 1
DRAWS, STEPS, LAST, SEEDS = 2**20, 300, 20, range(8)

Make = Callable[..., optim.Optimizer]
O2 = amp.Policy("O2", "bfloat16", execution="native")
NONE, STOCHASTIC = O2.replace(masters=None), O2.replace(masters="stochastic")
BY_CHANCE = partial(_AdamW, bf16_stochastic_round=True)
ROUNDING: Mapping[str, tuple[amp.Policy, Make]] = {
    'torchao, "bf16_stochastic_round"': (NONE, BY_CHANCE),
    'masters="stochastic"': (STOCHASTIC, optim.AdamW),
    'masters="stochastic", slots="bfloat16"': (STOCHASTIC.replace(slots="bfloat16"), optim.AdamW),
}
TRAININGS = {
    'masters="float32"': (O2, optim.AdamW),
    **ROUNDING,
    "torchao, to nearest": (NONE, _AdamW),
    "masters=None": (NONE, optim.AdamW),
}


def stepped(policy: amp.Policy, make: Make, lr: float, grads: list[float]) -> optim.Optimizer:
    """An optimizer of equal weights of 1, after a step for each of ``grads``."""
    model = nn.Linear(1024, DRAWS // 1024, bias=False)
    nn.init.ones_(model.weight)
    optimizer = make(model.parameters(), lr, weight_decay=0.0)
    amp.decorate(model, optimizer, policy)
    for grad in grads:
        model.weight.grad = torch.full_like(model.weight, grad)
        optimizer.step()
    return optimizer


def weights(optimizer: optim.Optimizer) -> Tensor:
    kept: Tensor = optimizer.param_groups[0]["params"][0].detach().double()
    return kept


def update_row(name: str, share: float) -> Row:
    found = weights(stepped(*ROUNDING[name], share * UNIT, [1.0]))
    exact = 1 - float(torch.tensor(share * UNIT)) / (1 + 1e-8)
    neighbours = {1.0, 1 - UNIT}
    beyond = set(found.unique().tolist()) - neighbours
    error = (found.mean() - exact) / (found.std() / DRAWS**0.5)
    lower = (found < 1).double().mean()
    return [f"{share:g}", name, f"{lower:.5f}", f"{error:+.1f}", str(len(beyond))]


def squares(name: str) -> str:
    optimizer = stepped(*ROUNDING[name], 1e-3, [1.0, *[0.0] * 100])
    (state,) = optimizer.state.values()
    exact = 0.001 * 0.999**100
    return f"{state['exp_avg_sq'].double().mean() / exact:.4f}"


def final_loss(policy: amp.Policy, make: Make, seed: int) -> float:
    digits = workloads.find("digits-mlp")("torch", seed)
    optimizer = make(digits.model.parameters(), 1e-3, weight_decay=0.01)
    step = amp.train_step(digits.loss_fn, digits.model, optimizer, policy=policy)
    return statistics.fmean([step(*batch).loss for batch in digits.first(STEPS)][-LAST:])


def training_row(name: str) -> Row:
    losses = [final_loss(*TRAININGS[name], seed) for seed in SEEDS]
    spread = statistics.stdev(losses) / len(losses) ** 0.5
    return [name, f"{statistics.fmean(losses):.5f}", f"{spread:.5f}"]


def main() -> None:
    where = f"torchao {version('torchao')}, {machine('torch')}"
    show: Any = page.show
    rows = [[update_row(name, share) for name in ROUNDING] for share in (0.01, 1 / 3, 0.5, 0.9)]
    columns = ("way to the next", "", "share that went", "z", "values beyond the two")
    show(Findings("an update", where, columns, rows))
    shrunk = [[name, squares(name)] for name in ROUNDING]
    show(Findings("squares", where, ("", "average of squares over float64's"), [shrunk]))
    trained = [training_row(name) for name in TRAININGS]
    show(Findings("trainings", where, ("", "loss", "standard error"), [trained]))


if __name__ == "__main__":
    main()
