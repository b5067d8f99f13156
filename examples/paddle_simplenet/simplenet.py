"""Paddle's mixed-precision guide on any framework: what O1, O2 and accumulation gain over float32.

    python examples/paddle_simplenet/simplenet.py --backend paddle
    python examples/paddle_simplenet/simplenet.py --backend torch --full
    python examples/paddle_simplenet/simplenet.py --backend torch --full \
        --layers 9 --width 8192 --batch 2048 --batches 10 --epochs 2

The function ``train`` is the guide's loop. What belongs to a framework stands in ``nets/``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any, Literal, NamedTuple

import numpy as np

import ampbridge as amp
from ampbridge.reports.printing import Table

BACKENDS = ("numpy", "torch", "tensorflow", "paddle", "jax")
INIT_SCALE = 1024.0


class Size(NamedTuple):
    """Of the net, and of the data: ``epochs`` times the same ``batches``."""

    layers: int
    width: int
    batch: int
    batches: int
    epochs: int

    def __str__(self) -> str:
        net = f"{self.layers} x Linear {self.width}"
        return f"{net}, batch {self.batch}, {self.epochs} x {self.batches} batches"


SMALL = Size(layers=3, width=256, batch=64, batches=10, epochs=5)
THE_GUIDES = Size(layers=3, width=4096, batch=512, batches=50, epochs=5)


class Recipe(NamedTuple):
    """A row of the guide's table."""

    name: str
    level: Literal["O0", "O1", "O2"]
    accumulate: int = 1


RECIPES = (
    Recipe("float32", "O0"),
    Recipe("O1", "O1"),
    Recipe("O2", "O2"),
    Recipe("O1, accumulated over 10", "O1", accumulate=10),
)


class Outcome(NamedTuple):
    """What the guide compares; the loss is the last batch's."""

    name: str
    seconds: float
    loss: float
    skipped: int


Data = list[tuple[Any, Any]]


def train(
    native: ModuleType,
    weights: Sequence[np.ndarray],
    data: Data,
    epochs: int,
    *,
    policy: amp.Policy,
    accumulate: int = 1,
    learning_rate: float = 1e-4,
    compile: bool | Literal["auto"] = "auto",
) -> tuple[float, list[amp.StepResult]]:
    """Train a net that starts from ``weights``: the seconds it took, and every step's result."""
    model = native.simplenet(weights)
    optimizer = native.optimizer(model, learning_rate)
    scaler = amp.GradScaler(INIT_SCALE) if policy.needs_scaling else None
    step = amp.train_step(
        native.loss,
        model,
        optimizer,
        policy=policy,
        scaler=scaler,
        accumulate=accumulate,
        compile=compile,
    )

    for x, y in islice(cycle(data), accumulate):  # traced, compiled and allocated off the clock
        step(x, y)
    native.wait()

    start = perf_counter()
    results = [step(x, y) for _ in range(epochs) for x, y in data]
    native.wait()
    return perf_counter() - start, results


def initial_weights(size: Size, seed: int) -> list[np.ndarray]:
    """As Paddle makes them (Glorot's uniform), float32 (in, out); biases are zero."""
    rng, bound = np.random.default_rng(seed), (3 / size.width) ** 0.5
    shape = size.width, size.width
    return [(2 * rng.random(shape, np.float32) - 1) * np.float32(bound) for _ in range(size.layers)]


def random_data(native: ModuleType, size: Size, seed: int) -> Data:
    """Batches of normal inputs and of normal labels that have nothing to do with them."""
    rng, shape = np.random.default_rng(seed + 1), (size.batch, size.width)
    return [
        tuple(native.tensor(rng.standard_normal(shape, np.float32)) for _ in "xy")
        for _ in range(size.batches)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    # NVIDIA's libraries, under any framework, must not run float32 products in TF32: the first row
    # is what the others are measured against. They read this when the framework loads them.
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
    args = parse(arguments)
    native, size = import_module(f"nets.{args.backend}"), chosen_size(args)
    print(f"SimpleNet in {args.backend} on {native.device()}: {size}", flush=True)

    weights = initial_weights(size, args.seed)
    data = random_data(native, size, args.seed)
    outcomes = []
    for recipe in RECIPES:
        seconds, results = train(
            native,
            weights,
            data,
            size.epochs,
            policy=amp.Policy(recipe.level, args.dtype, execution=args.execution),
            accumulate=recipe.accumulate,
            learning_rate=args.learning_rate,
            compile=args.compile,
        )
        skipped = sum(result.reason in ("inf", "nan") for result in results)
        outcomes.append(Outcome(recipe.name, seconds, results[-1].loss, skipped))

    as_table(outcomes, args.dtype).print(sys.stdout)
    if args.json:
        args.json.write_text(json.dumps([row._asdict() for row in outcomes], indent=1) + "\n")


def as_table(outcomes: Sequence[Outcome], dtype: str) -> Table:
    rows = tuple(
        (
            name,
            f"{seconds:.3f} s",
            f"{outcomes[0].seconds / seconds:.2f}x",
            f"{loss:.8f}",
            str(skipped),
        )
        for name, seconds, loss, skipped in outcomes
    )
    return Table("", (dtype, "time", "speed-up", "last loss", "skipped"), rows)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--backend", choices=BACKENDS, required=True, help="the framework")
    add("--full", action="store_true", help=f"the guide's size: {THE_GUIDES}; else {SMALL}")
    for name in Size._fields:
        add(f"--{name}", type=int, metavar="N", help="in place of that size's")
    add("--dtype", choices=("float16", "bfloat16"), default="float16", help="the low precision")
    add(
        "--execution",
        choices=("auto", "native", "simulated"),
        default="auto",
        help="kernels of the low precision, or float32's with rounding (default: the faster)",
    )
    add("--compile", action="store_const", const=True, default="auto", help="compile the step")
    add("--learning-rate", type=float, default=1e-4, help="of SGD (default: %(default)s)")
    add("--seed", type=int, default=0, help="of weights and data (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write the table to FILE")
    return parser.parse_args(arguments)


def chosen_size(args: argparse.Namespace) -> Size:
    given = {name: getattr(args, name) for name in Size._fields if getattr(args, name) is not None}
    return (THE_GUIDES if args.full else SMALL)._replace(**given)


if __name__ == "__main__":
    main()
