"""How many calls of ours a warm step makes, and in how many files: what a reader of a step has to follow.

    python bench/calls.py                        torch
    python bench/calls.py --framework numpy      or another one
    python bench/calls.py --each                 with the name of each call, in order

Of the framework's own code only torch's AMP is counted: a loop by hand, inside of torch/amp.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

os.environ.setdefault("AMPBRIDGE_CPU_EXECUTION", "native")

import numpy as np

import ampbridge as amp
from ampbridge import neutral

OURS = Path(amp.__file__).parents[1]
WARM = 20


def called(step: Callable[[], object], within: Path) -> list[tuple[str, str]]:
    """File and function of each call inside of ``within`` that a warm step makes."""
    for _ in range(WARM):
        step()
    found = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        path = Path(code.co_filename)
        if event == "call" and within in path.parents:
            found.append((str(path.relative_to(within)), code.co_qualname))

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    roots = "ampbridge", "backends", "autocast_mode", "grad_scaler"
    return [call for call in found if call[0].startswith(roots)]


def policies(framework: str) -> dict[str, amp.Policy]:
    both = {"O0": amp.Policy("O0"), "O1": amp.Policy("O1", "bfloat16")}
    if framework != "numpy":
        both['O1, lists="native"'] = amp.Policy("O1", "bfloat16", lists="native")
    return {**both, "O2": amp.Policy("O2", "bfloat16")}


def step_of(framework: str, policy: amp.Policy) -> Callable[[], object]:
    model, optimizer, loss_fn, batch = of_torch() if framework == "torch" else neutral_of(framework)
    step = amp.train_step(loss_fn, model, optimizer, policy=policy, compile=False)
    return lambda: step(*batch)


def neutral_of(framework: str) -> tuple[Any, Any, Callable[..., Any], tuple[Any, ...]]:
    model = neutral.mlp(framework, 16, [16], 4)
    x = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    optimizer = neutral.optimizer("adamw", model, lr=1e-3)
    return model, optimizer, lambda m, x, y: neutral.cross_entropy(m(x), y), (x, np.arange(8) % 4)


def of_torch() -> tuple[Any, Any, Callable[..., Any], tuple[Any, ...]]:
    """All of it torch's own, so that no call of ours is one of the model's."""
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss = torch.nn.functional.cross_entropy
    return (
        model,
        optimizer,
        lambda m, x, y: loss(m(x), y),
        (torch.randn(8, 16), torch.arange(8) % 4),
    )


def by_hand() -> tuple[Callable[[], object], Path]:
    """The loop of torch's own documentation, and the folder of its AMP."""
    import torch

    model, optimizer, loss_fn, batch = of_torch()
    scaler = torch.amp.GradScaler("cpu")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_fn(model, *batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step, Path(torch.amp.__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--framework", default="torch")
    parser.add_argument("--each", action="store_true")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = {
        name: called(step_of(asked.framework, policy), OURS)
        for name, policy in policies(asked.framework).items()
    }
    if asked.framework == "torch":
        rows["torch.amp, by hand"] = called(*by_hand())
    for name, calls in rows.items():
        print(f"{name:22} {len(calls):4} calls, {len({file for file, _ in calls}):3} files")
        for file, function in calls if asked.each else ():
            print(f"    {file}: {function}")


if __name__ == "__main__":
    main()
