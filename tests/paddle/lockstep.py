"""One framework's run for ``test_against_numpy.py``: ``python lockstep.py FRAMEWORK FOLDER``.

Sixty steps of each workload. The first run (NumPy's) writes down the weights before each step, and
what came of them; the second starts each step from these weights.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import ampbridge as amp
from ampbridge.workloads import digits, of_backend, weights

STEPS, SEED = 60, 2
RUNS = [(w, p) for w in ("mlp", "conv", "transformer") for p in ("O1:float16", "O2:float16")]
RUNS += [("mlp", "O2:bfloat16")]


def main(framework: str, folder: str) -> None:
    # An explicit "simulated" is what was asked for: no warning.
    warnings.simplefilter("error", amp.AmpBridgeWarning)
    for workload, policy in RUNS:
        reference = Path(folder) / f"{workload}-{policy}-numpy.npz"
        start = np.load(reference) if framework != "numpy" else None
        found = dict(steps(framework, workload, policy, start))
        np.savez(Path(folder) / f"{workload}-{policy}-{framework}.npz", **found)


def steps(framework: str, workload: str, short: str, start: Any) -> Iterator[tuple[str, Any]]:
    """Names such as "7 loss" or "7 weight 2", and values."""
    native = of_backend(framework)
    model = getattr(native, workload)(weights.make(workload, SEED))
    optimizer = native.optimizer(model)
    policy = amp.Policy.parse(short).replace(execution="simulated")
    if policy.level == "O2":
        amp.decorate(model, optimizer, policy)
    scaler = amp.GradScaler(2.0**24, growth_interval=15, enabled=policy.needs_scaling)
    parameters = amp.backend(model).parameters(model)
    training, _ = digits.load(workload)
    for index, (x, y) in enumerate(digits.batches(training, 128, STEPS, SEED)):
        for number, parameter in enumerate(parameters):
            if start is not None:
                parameter.set_value(start[f"{index} weight {number}"])
            yield f"{index} weight {number}", as_array(parameter)
        yield f"{index} scale", scaler.get_scale()
        loss, grads = amp.value_and_grad(
            native.loss, model, x, y, policy=policy, scaler=scaler if scaler.enabled else None
        )
        yield f"{index} loss", as_array(loss)
        for number, grad in enumerate(grads):
            yield f"{index} grad {number}", as_array(grad)
        yield f"{index} applied", bool(scaler.step(optimizer, grads))
        scaler.update()


def as_array(value: Any) -> np.ndarray:
    return np.array(value.numpy() if hasattr(value, "numpy") else value)


if __name__ == "__main__":
    main(*sys.argv[1:])
