"""``masters=`` beside torchao's ``bf16_stochastic_round`` and DeepSpeed's low masters: updates, trainings.

    pip install torchao deepspeed; python bench/beside_others.py

An update takes a million equal weights a part of the way from 1 to the next lower bfloat16. z is the
distance of their mean from the update in float64, in standard errors. Then Adam's average of squares after
100 steps with gradients of zero, over what it is in float64. The trainings are of digits-mlp, 300 steps, from
the same weights and batches: the mean of the last 20 losses, over eight seeds. What is not installed has no
rows.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec

import page
import torch
import torch.nn.functional as F
from measuring import machine
from page import Findings, Row
from torch import Tensor, nn, optim
from torch.distributed import HashStore

import ampbridge as amp
from ampbridge import workloads

UNIT = 2.0**-8  # between bfloat16 numbers below 1
DRAWS, STEPS, LAST, SEEDS = 2**20, 300, 20, range(8)

Make = Callable[..., optim.Optimizer]
O2 = amp.Policy("O2", "bfloat16", execution="native")
NONE, STOCHASTIC = O2.replace(masters=None), O2.replace(masters="stochastic")
ROUNDING: dict[str, tuple[amp.Policy, Make]] = {
    'masters="stochastic"': (STOCHASTIC, optim.AdamW),
    'masters="stochastic", slots="bfloat16"': (STOCHASTIC.replace(slots="bfloat16"), optim.AdamW),
}
TO_NEAREST: dict[str, tuple[amp.Policy, Make]] = {"masters=None": (NONE, optim.AdamW)}
if find_spec("torchao"):
    from torchao.optim import _AdamW

    ROUNDING["torchao, bf16_stochastic_round"] = NONE, partial(_AdamW, bf16_stochastic_round=True)
    TO_NEAREST["torchao, to nearest"] = NONE, _AdamW
TRAININGS = {'masters="float32"': (O2, optim.AdamW), **ROUNDING, **TO_NEAREST}
LOW_STATES = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
DEEPSPEED: dict[str, dict[str, bool]] = {}
if find_spec("deepspeed"):
    DEEPSPEED = {"DeepSpeed, bf16": {}, "DeepSpeed, low masters and states": LOW_STATES}


def stepped(policy: amp.Policy, make: Make, lr: float, grads: list[float]) -> optim.Optimizer:
    """An optimizer of equal weights of 1, after a step for each of ``grads``."""
    torch.manual_seed(0)
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
    torch.manual_seed(seed)
    step = amp.train_step(digits.loss_fn, digits.model, optimizer, policy=policy)
    return statistics.fmean([step(*batch).loss for batch in digits.first(STEPS)][-LAST:])


def loss_of_deepspeed(bf16: dict[str, bool], seed: int) -> float:
    """Of ZeRO's stage 1 in one process, in a region of bfloat16."""
    import deepspeed

    digits = workloads.find("digits-mlp")("torch", seed)
    config = {
        "train_micro_batch_size_per_gpu": len(digits.batches[0][0]),
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": True, **bf16},
        "torch_autocast": {"enabled": True, "dtype": "bfloat16"},
    }
    optimizer = optim.AdamW(digits.model.parameters(), 1e-3, weight_decay=0.01)
    engine, *_ = deepspeed.initialize(model=digits.model, optimizer=optimizer, config=config)
    losses = []
    for batch in digits.first(STEPS):
        x, y = map(torch.as_tensor, batch)
        loss = F.cross_entropy(engine(x.bfloat16()).float(), y.long())
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return statistics.fmean(losses[-LAST:])


def training_row(name: str, loss_of: Callable[[int], float]) -> Row:
    losses = [loss_of(seed) for seed in SEEDS]
    spread = statistics.stdev(losses) / len(losses) ** 0.5
    return [name, f"{statistics.fmean(losses):.5f}", f"{spread:.5f}"]


def main() -> None:
    others = [f"{name} {version(name)}" for name in ("torchao", "deepspeed") if find_spec(name)]
    where = ", ".join([*others, machine("torch")])
    rows = [[update_row(name, share) for name in ROUNDING] for share in (0.01, 1 / 3, 0.5, 0.9)]
    columns = ("way to the next", "", "share that went", "z", "values beyond the two")
    page.show(Findings("an update", where, columns, rows))
    shrunk = [[name, squares(name)] for name in ROUNDING]
    page.show(Findings("squares", where, ("", "average of squares over float64's"), [shrunk]))
    trained = [training_row(name, partial(final_loss, *how)) for name, how in TRAININGS.items()]
    if DEEPSPEED:
        os.environ.setdefault("LOCAL_RANK", "0")  # which DeepSpeed's launcher sets
        torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    trained += [
        training_row(name, partial(loss_of_deepspeed, bf16)) for name, bf16 in DEEPSPEED.items()
    ]
    page.show(Findings("trainings", where, ("", "loss", "standard error"), [trained]))


if __name__ == "__main__":
    main()
