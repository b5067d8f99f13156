"""How often the host waits for the device in a training step, and the passes over the gradients.

python tests/virtual_cuda/waiting.py            the table of docs/performance.md
python tests/virtual_cuda/waiting.py --write    puts it there
python tests/virtual_cuda/waiting.py --gpu      waits alone, as the GPU that is there tells of them
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__" and "--gpu" not in sys.argv:
    from ampbridge_rehearse import virtual_cuda

    virtual_cuda.install()

import torch
from torch import Tensor, nn

import ampbridge as amp
from ampbridge_rehearse import virtual_cuda

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
BEGIN, END = "<!-- counted: waits -->", "<!-- end of waits -->"
STEPS = 3


class Counted(NamedTuple):
    """Of one step: waits of the host and, if counted, kernels: those over all gradients, and all."""

    waits: float
    passes: float | None = None
    kernels: float | None = None


Train = Callable[[], None]
Counter = Callable[[Train, int], Counted]
"""Of one call of a step, for so many parameters."""


@dataclass(frozen=True)
class Case:
    """A way to train.

    Attributes:
        optimizer: of some parameters.
        options: for ``train_step``.
        scaled: whether there is a scaler.
        log: what is done with each result.
        overflows: whether each step does.
        native: whether torch's own scaler has the same to do; by hand.
    """

    title: str
    optimizer: Callable[[Any], torch.optim.Optimizer]
    options: Mapping[str, Any] = field(default_factory=dict)
    scaled: bool = True
    log: Callable[[amp.StepResult], object] = lambda result: None
    overflows: bool = False
    native: bool = False


def foreach(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, 1e-3, foreach=True)


def fused(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, 1e-3, fused=True)


def logged(result: amp.StepResult) -> object:
    return result.loss, result.applied, result.scale, result.reason


def both(title: str, native: bool = False, **case: Any) -> Iterator[Case]:
    yield Case(f"{title}, AdamW", foreach, native=native, **case)
    yield Case(f"{title}, fused AdamW", fused, native=native, **case)


CASES = [
    *both("O1 float16, scaler", native=True),
    *both("O1 bfloat16", options={"policy": "O1:bfloat16"}, scaled=False),
    *both("O2 float16, scaler", options={"policy": "O2:float16"}),
    *both("clip_norm=1.0", native=True, options={"clip_norm": 1.0}),
    *both("accumulate=4", native=True, options={"accumulate": 4}),
    *both("a learning-rate schedule", options={"scheduler": "step"}),
    *both("name_overflows=True", options={"name_overflows": True}),
    *both("an overflow", overflows=True),
    *both("result.loss logged", log=lambda result: result.loss),
    *both("result.applied logged", log=lambda result: result.applied),
    *both("loss, applied, scale, reason logged", log=logged),
]


def by_the_device(train: Train, parameters: int) -> Counted:
    """As the virtual device counts."""
    train()
    virtual_cuda.forget()
    virtual_cuda.note_calls()
    for _ in range(STEPS):
        train()
    virtual_cuda.note_calls(False)
    waits = sum(wait.count for wait in virtual_cuda.waits())
    calls = virtual_cuda.calls()
    passes = sum(
        call.count
        for call in calls
        if _goes_over_gradients(call.op) and len(call.dtypes) >= parameters
    )
    kernels = sum(call.count for call in calls)
    return Counted(waits / STEPS, passes / STEPS, kernels / STEPS)


def _goes_over_gradients(op: str) -> bool:
    return op.startswith(("aten::_foreach_", "aten::_amp_foreach_"))


def by_warnings(train: Train, parameters: int) -> Counted:
    """As ``torch.cuda.set_sync_debug_mode`` tells, on any device: waits alone."""
    train()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for _ in range(STEPS):
                train()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = [w for w in told if "called a synchronizing CUDA operation" in str(w.message)]
    return Counted(len(waits) / STEPS)


def count(case: Case, counter: Counter = by_the_device) -> Counted:
    """Of one optimizer step of ``amp.train_step``, after a first one."""
    model, x, y = _training()
    optimizer = case.optimizer(model.parameters())
    options = {"policy": "O1:float16", **case.options}
    if "scheduler" in options:
        options["scheduler"] = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scale = 2.0**30 if case.overflows else 2.0**8
    scaler = amp.GradScaler(scale, max_scale=2.0**40, min_scale=2.0**24 if case.overflows else 1.0)
    step = amp.train_step(
        lambda model, x, y: (model(x) - y).square().mean(),
        model,
        optimizer,
        scaler=scaler if case.scaled else None,
        **options,
    )

    def train() -> None:
        for _ in range(options.get("accumulate", 1)):
            result = step(x, y)
        case.log(result)

    return counter(train, sum(p.requires_grad for p in model.parameters()))


def count_by_hand(case: Case, counter: Counter = by_the_device) -> Counted:
    """Of torch's own loop with ``torch.amp.GradScaler``."""
    model, x, y = _training()
    optimizer = case.optimizer(model.parameters())
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8)
    accumulate = case.options.get("accumulate", 1)

    def train() -> None:
        optimizer.zero_grad()
        for _ in range(accumulate):
            with torch.autocast("cuda", torch.float16):
                loss = (model(x) - y).square().mean() / accumulate
            scaler.scale(loss).backward()
        if "clip_norm" in case.options:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), case.options["clip_norm"])
        scaler.step(optimizer)
        scaler.update()

    return counter(train, sum(p.requires_grad for p in model.parameters()))


def _training() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)).to("cuda")
    return model, torch.randn(4, 8, device="cuda"), torch.randn(4, 4, device="cuda")


def table() -> str:
    """The table of the page."""
    lines = [
        "`python tests/virtual_cuda/waiting.py --write`, on the virtual CUDA device.",
        "",
        "| a step | waits | passes | kernels | by hand: waits | passes | kernels |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        by_hand = [f"{n:g}" for n in count_by_hand(case)] if case.native else [""] * 3
        cells = [case.title, *(f"{n:g}" for n in count(case)), *by_hand]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def table_of_waits() -> str:
    """On the present CUDA device, a real one or not."""
    lines = ["| a step | waits | by hand |", "|---|---|---|"]
    for case in CASES:
        by_hand = f"{count_by_hand(case, by_warnings).waits:g}" if case.native else ""
        lines.append(f"| {case.title} | {count(case, by_warnings).waits:g} | {by_hand} |")
    return "\n".join(lines)


def on_the_page() -> str:
    return _parts(PAGE.read_text(encoding="utf-8"))[1].strip()


def _parts(page: str) -> tuple[str, str, str]:
    before, _, rest = page.partition(BEGIN)
    inside, _, after = rest.partition(END)
    return before, inside, after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--write", action="store_true", help="put the table into the page, too")
    where.add_argument("--gpu", action="store_true", help="as the present GPU tells: waits alone")
    options = parser.parse_args()
    made = table_of_waits() if options.gpu else table()
    print(made)
    if options.write:
        before, _, after = _parts(PAGE.read_text(encoding="utf-8"))
        PAGE.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
