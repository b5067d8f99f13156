"""A training begun on torch goes on elsewhere: ``python measure_portability.py numpy FILE``.

Torch, which comes first, leaves a checkpoint beside its file; the others adopt it.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import ampbridge as amp
from ampbridge import neutral
from ampbridge.workloads import digits, of_backend, weights

STEPS, FURTHER = 30, 25


def main(framework: str, file: str, checkpoint: str) -> None:
    warnings.simplefilter("error", amp.AmpBridgeWarning)
    warnings.simplefilter("ignore", amp.SimulationWarning)
    runs = {name: run(framework, name, Path(checkpoint) / name) for name in ("mlp", "conv")}
    Path(file).write_text(json.dumps(runs))


def run(framework: str, workload: str, checkpoint: Path) -> dict[str, Any]:
    native: Any = of_backend(framework)
    training, test = digits.load(workload)
    batches = list(digits.batches(training, 64, STEPS + FURTHER, seed=4))
    if framework == "torch":
        model = getattr(native, workload)(weights.make(workload, 0))
        step = step_over(native, model, 0.1)
        for x, y in batches[:STEPS]:
            step(x, y)
        step.save(checkpoint)
    else:
        model = getattr(native, workload)(weights.make(workload, 1))
    step = step_over(native, model, 0.0)  # weights stay, so that only the scale goes on
    report = step.adopt(checkpoint)
    logits = neutral.predict(model, test.x[:100], size=100)
    results = [step(x, y) for x, y in batches[STEPS:]]
    return {
        "logits": logits.tolist(),
        "matched": len(report),
        "first step": results[0].step,
        "scale": [result.scale for result in results],
        "applied": [result.applied for result in results],
    }


def step_over(native: Any, model: Any, learning_rate: float) -> amp.TrainStep:
    scaler = amp.GradScaler(2.0**14, growth_interval=4)
    optimizer = native.optimizer(model, learning_rate)
    return amp.train_step(native.loss, model, optimizer, policy="O1", scaler=scaler)


if __name__ == "__main__":
    main(*sys.argv[1:])
