"""TensorFlow's mixed-precision guide on any framework: a classifier by ``fit`` and by its own loop.

    python examples/tf_guide/guide.py --backend tensorflow
    python examples/tf_guide/guide.py --backend torch --loop custom --units 4096 --policies O0 O2

The functions ``custom_loop`` and ``fit`` are the guide's two halves. What belongs to a framework
stands in ``nets/``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from math import log2
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any, NamedTuple

import data
import numpy as np

import ampbridge as amp
from ampbridge.reports.printing import Table

BACKENDS = ("numpy", "torch", "tensorflow", "paddle", "jax")
LOOPS = ("fit", "custom")
POLICIES = ("O0", "O1", "O2", "O2:bfloat16")
SOFTMAX = "predictions"  # the layer that stays float32


class Task(NamedTuple):
    """What a run trains on, and how."""

    policy: amp.Policy
    training: data.Examples
    held_out: data.Examples
    epochs: int
    batch_size: int
    init_scale: float


class Epoch(NamedTuple):
    """The mean loss over its steps, the accuracy on the examples held out, the scale at its end."""

    loss: float
    accuracy: float
    scale: float
    seconds: float


class Outcome(NamedTuple):
    """A run; ``outputs`` is the dtype in which probabilities leave the model."""

    policy: amp.Policy
    epochs: list[Epoch]
    outputs: str
    accuracy: float


Report = Callable[[float, float, float], None]
"""Called after each epoch with its loss, accuracy and loss scale."""


def custom_loop(native: ModuleType, model: Any, optimizer: Any, task: Task, report: Report) -> None:
    """A loop of one's own: ``train_step`` scales the loss, unscales, skips and steps."""
    scaler = amp.GradScaler(task.init_scale) if task.policy.needs_scaling else None
    step = amp.train_step(native.loss, model, optimizer, policy=task.policy, scaler=scaler)
    rng = np.random.default_rng(0)
    for _ in range(task.epochs):
        results = [step(x, y) for x, y in data.batches(task.training, task.batch_size, rng)]
        loss = float(np.mean([result.loss for result in results]))
        report(loss, accuracy(native, model, task.held_out), results[-1].scale)


def fit(native: ModuleType, model: Any, optimizer: Any, task: Task, report: Report) -> None:
    """The framework's own ``fit``; PyTorch and NumPy have none, there the loop takes its place."""
    if hasattr(native, "fit"):
        native.fit(model, optimizer, task, report)
    else:
        custom_loop(native, model, optimizer, task, report)


def run(native: ModuleType, loop: str, task: Task, test: data.Examples, units: int) -> Outcome:
    """Train one model by one of the loops, and test it under its policy."""
    model = native.classifier(initial_weights(units))
    optimizer = native.optimizer(model)
    model, optimizer = amp.decorate(model, optimizer, task.policy)

    epochs: list[Epoch] = []
    clock = perf_counter()

    def report(loss: float, accuracy: float, scale: float) -> None:
        nonlocal clock
        before, clock = clock, perf_counter()
        epochs.append(Epoch(loss, accuracy, scale, clock - before))
        print(
            f"  epoch {len(epochs)}  loss {loss:.4f}  accuracy {accuracy:.2f}  "
            f"loss scale {as_power(scale)}  {clock - before:.2f} s",
            flush=True,
        )

    {"fit": fit, "custom": custom_loop}[loop](native, model, optimizer, task, report)
    outputs = native.predict(model, test.x[:1]).dtype.name
    return Outcome(task.policy, epochs, outputs, accuracy(native, model, test))


def accuracy(native: ModuleType, model: Any, examples: data.Examples) -> float:
    probabilities = native.predict(model, examples.x)
    return float((probabilities.argmax(axis=1) == examples.y).mean())


def initial_weights(units: int, seed: int = 0) -> dict[str, np.ndarray]:
    """As Keras makes them (Glorot's uniform), float32 (in, out); biases are zero."""
    rng = np.random.default_rng(seed)
    shapes = {
        "dense_1": (data.INPUTS, units),
        "dense_2": (units, units),
        "dense_logits": (units, data.CLASSES),
    }
    weights = {}
    for name, shape in shapes.items():
        bound = (6 / sum(shape)) ** 0.5
        weights[name] = rng.uniform(-bound, bound, shape).astype(np.float32)
    return weights


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    args = parse(arguments)
    native, digits = import_module(f"nets.{args.backend}"), data.load()
    tables: dict[str, list[Outcome]] = {}
    for loop in args.loop:
        held_out = digits.validation if loop == "fit" else digits.test  # the guide's choice
        for policy in args.policies:
            print(f"{title(native, loop)}, {policy!r}")
            print(f"  computes in {policy.compute_dtype}, variables in {policy.variable_dtype}")
            task = Task(
                policy, digits.training, held_out, args.epochs, args.batch_size, args.init_scale
            )
            outcome = run(native, loop, task, digits.test, args.units)
            print(f"  outputs in {outcome.outputs}, test accuracy {outcome.accuracy:.2f}\n")
            tables.setdefault(loop, []).append(outcome)
    for loop, outcomes in tables.items():
        as_table(f"{title(native, loop)}, {args.backend}", outcomes).print(sys.stdout)
        print()
    if args.json:
        args.json.write_text(json.dumps(as_json(tables), indent=1) + "\n")


def title(native: ModuleType, loop: str) -> str:
    if loop == "custom":
        return "Custom loop"
    return "Fit" if hasattr(native, "fit") else "Fit (by steps)"


def as_table(heading: str, outcomes: Sequence[Outcome]) -> Table:
    header = ("policy", "compute", "variables", "outputs", "scale", "s/epoch", "accuracy")
    rows = []
    for policy, epochs, outputs, accuracy in outcomes:
        # The first epoch is left out where there are others: it also traces and compiles.
        seconds = float(np.median([epoch.seconds for epoch in epochs[1:] or epochs]))
        dtypes = (policy.compute_dtype, policy.variable_dtype, outputs)
        scale = as_power(epochs[-1].scale)
        rows.append((name_of(policy), *dtypes, scale, f"{seconds:.2f}", f"{accuracy:.2f}"))
    return Table(heading, header, tuple(rows))


def as_power(scale: float) -> str:
    return "none" if scale == 1.0 else f"2^{log2(scale):g}"


def as_json(tables: dict[str, list[Outcome]]) -> dict[str, Any]:
    return {
        loop: {
            name_of(outcome.policy): {
                "outputs": outcome.outputs,
                "accuracy": outcome.accuracy,
                "epochs": [epoch._asdict() for epoch in outcome.epochs],
            }
            for outcome in outcomes
        }
        for loop, outcomes in tables.items()
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line's values, ``policies`` with the softmax kept and as ``amp`` takes them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--backend", choices=BACKENDS, required=True, help="the framework")
    add("--loop", choices=LOOPS, nargs="+", default=LOOPS, help="(default: both)")
    add("--policies", nargs="+", default=POLICIES, help="(default: %(default)s)")
    add("--units", type=int, default=64, help="of a hidden layer; the guide's 4096 are for GPUs")
    add("--epochs", type=int, default=5, help="(default: %(default)s)")
    add("--batch-size", type=int, default=64, help="(default: %(default)s)")
    add("--init-scale", type=float, default=2.0**16, help="first loss scale (default: %(default)g)")
    add(
        "--execution", choices=("auto", "native", "simulated"), default="auto", help="of low dtypes"
    )
    add("--json", type=Path, metavar="FILE", help="write every epoch of every run to FILE")
    args = parser.parse_args(arguments)
    try:
        args.policies = [chosen_policy(text, args.execution) for text in args.policies]
    except amp.AmpBridgeError as error:
        parser.error(str(error))
    return args


def name_of(policy: amp.Policy) -> str:
    return policy.level if policy.level == "O0" else f"{policy.level}:{policy.dtype}"


def chosen_policy(text: str, execution: str) -> amp.Policy:
    return amp.Policy.parse(text).replace(keep=[SOFTMAX], execution=execution)


if __name__ == "__main__":
    main()
