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
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

os.environ.setdefault("AMPBRIDGE_CPU_EXECUTION", "native")

import measuring
import numpy as np
from measuring import FRAMEWORKS, Step
from steps import Task, bridged

import ampbridge as amp
from ampbridge import neutral

OURS = Path(amp.__file__).parents[1]
WARM = 20


def called(step: Step, within: Path) -> list[tuple[str, str]]:
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


def small(framework: str) -> Task:
    """All of it the framework's own, so that on torch no call of ours is one of the model's."""
    native = measuring.native(framework)
    model = neutral.mlp(framework, 16, [16], 4, activation="relu")
    x = np.random.default_rng(0).standard_normal((8, 16), dtype=np.float32)
    return native.task(model, x, np.arange(8) % 4)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--framework", choices=FRAMEWORKS, default="torch")
    parser.add_argument("--each", action="store_true")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    fresh = partial(small, asked.framework)
    policies = {"O0": amp.Policy("O0"), "O1": amp.Policy("O1", "bfloat16")}
    if asked.framework == "torch":  # alone has lists of its own on a CPU
        policies['O1, lists="native"'] = amp.Policy("O1", "bfloat16", lists="native")
    policies["O2"] = amp.Policy("O2", "bfloat16")
    rows = {
        name: called(bridged(fresh, policy, compile=False), OURS)
        for name, policy in policies.items()
    }
    if asked.framework == "torch":
        import torch
        from native_torch import mixed_loop

        by_torch = mixed_loop(fresh, scaled=True)
        rows["torch.amp, by hand"] = called(by_torch, Path(torch.amp.__file__).parent)
    for name, calls in rows.items():
        print(f"{name:22} {len(calls):4} calls, {len({file for file, _ in calls}):3} files")
        for file, function in calls if asked.each else ():
            print(f"    {file}: {function}")


if __name__ == "__main__":
    main()
