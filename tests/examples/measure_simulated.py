"""One framework's runs for ``test_simulated.py``: ``python measure_simulated.py torch FILE``.

The optimizer steps at rate zero, so that every step meets the same weights, whatever was applied
before: what is compared is the arithmetic of single steps, and what the scaler makes of it.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from train import WORKLOADS

import ampbridge as amp
from ampbridge.workloads import digits, of_backend, weights

LEVELS = ("O1", "O2")
STEPS, BATCH_SIZE, SEED = 60, 64, 0


def main(framework: str, file: str) -> None:
    warnings.simplefilter("error", amp.AmpBridgeWarning)  # simulation was asked for: no warning
    native = of_backend(framework)
    runs: dict[str, Any] = {}
    execution: Any = "native" if framework == "jax" else "simulated"
    for level in LEVELS:
        policy = amp.Policy(level, "float16", execution=execution)
        runs[level] = {workload: steps(native, workload, policy) for workload in WORKLOADS}
        runs[level]["own loop"], gradients = own_loop(native, framework, policy)
        runs[level]["gradients"] = f"{file}.{level}.npy"
        np.save(runs[level]["gradients"], gradients)
    Path(file).write_text(json.dumps(runs))


def scaler() -> amp.GradScaler:
    """Of scales that overflow at first, and grow back into overflow twice and more."""
    return amp.GradScaler(2.0**24, growth_interval=15)


def steps(native: Any, workload: str, policy: amp.Policy) -> dict[str, list[Any]]:
    """Every step of ``train_step``, compiled where that is the default."""
    model, optimizer = resting(native, workload)
    step = amp.train_step(native.loss, model, optimizer, policy=policy, scaler=scaler())
    results = [step(x, y) for x, y in batches(workload)]
    fields = ("loss", "scale", "applied", "reason")
    return {name: [getattr(result, name) for result in results] for name in fields}


def own_loop(
    native: Any, framework: str, policy: amp.Policy
) -> tuple[dict[str, list[Any]], np.ndarray]:
    """The MLP in a loop of one's own, and its gradients: scaled, float32 (steps, parameters)."""
    model, optimizer = amp.decorate(*resting(native, "mlp"), policy)
    own = scaler()
    run: dict[str, list[Any]] = {"loss": [], "scale": [], "applied": []}
    gradients = []
    for x, y in batches("mlp"):
        loss, grads = amp.value_and_grad(native.loss, model, x, y, policy=policy, scaler=own)
        gradients.append(flattened(grads, framework))
        run["loss"].append(float(loss))
        run["scale"].append(own.get_scale())
        run["applied"].append(bool(own.step(optimizer, grads)))
        own.update()
    return run, np.stack(gradients)


def resting(native: Any, workload: str) -> tuple[Any, Any]:
    """A model whose weights no step changes, and its optimizer."""
    model = getattr(native, workload)(weights.make(workload, SEED))
    return model, native.optimizer(model, learning_rate=0.0)


def batches(workload: str) -> Any:
    return digits.batches(digits.load(workload)[0], BATCH_SIZE, STEPS, SEED)


def flattened(grads: Any, framework: str) -> np.ndarray:
    """All in one row, linear weights as (in, out); PyTorch has them the other way round."""
    arrays = [np.array(g.detach() if hasattr(g, "detach") else g) for g in grads]
    assert {array.dtype.name for array in arrays} == {"float32"}
    return np.concatenate([(a.T if framework == "torch" else a).ravel() for a in arrays])


if __name__ == "__main__":
    main(*sys.argv[1:])
