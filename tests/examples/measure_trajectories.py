"""A run for ``test_trajectories.py``: ``python measure_trajectories.py torch FILE mlp``, or ``long``."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

from train import Run, train

import ampbridge as amp

# Any seed will do; with this one some skips come after the start, on each workload but conv.
SEED = 2


def main(framework: str, file: str, what: str) -> None:
    warnings.simplefilter("error", amp.AmpBridgeWarning)
    warnings.simplefilter("ignore", amp.SimulationWarning)  # Paddle has no 16-bit kernels on a CPU
    if what == "long":
        measured = {policy: until_it_fits(framework, policy) for policy in ("O0", "O1:float16")}
    else:
        measured = falling_scale(framework, what)
    Path(file).write_text(json.dumps(measured))


def falling_scale(framework: str, workload: str) -> dict[str, Any]:
    scaler = amp.GradScaler(2.0**24, growth_interval=1000)
    run = train(framework, workload, policy="O1", scaler=scaler, steps=60, seed=SEED, report=unread)
    return as_lists(run)


def until_it_fits(framework: str, policy: str) -> dict[str, Any]:
    scaler = amp.GradScaler(2.0**24, growth_interval=1000) if policy != "O0" else "auto"
    run = train(framework, "mlp", policy=policy, scaler=scaler, steps=400, seed=SEED, report=unread)
    return as_lists(run)


def unread(result: amp.StepResult) -> None:
    """Nothing is read during training: results must keep their values for later."""


def as_lists(run: Run) -> dict[str, Any]:
    fields = ("loss", "scale", "applied", "reason")
    lists = {name: [getattr(result, name) for result in run.results] for name in fields}
    return {**lists, "accuracy": run.accuracy}


if __name__ == "__main__":
    main(*sys.argv[1:])
