"""Train on the handwritten digits in mixed precision: one script for five frameworks.

    python examples/train.py --backend torch --policy O1 --dtype float16 --init-scale 16777216

The function ``train`` is the whole example. No line of this file asks which framework it is: the model
and the optimizer that ``ampbridge.neutral`` makes are the framework's own.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from math import log2
from pathlib import Path
from typing import Any, Literal, NamedTuple

import ampbridge as amp
from ampbridge import neutral
from ampbridge.workloads import digits

BACKENDS = ("numpy", "torch", "tensorflow", "paddle", "jax")

MODELS: dict[str, Callable[[str, int], Any]] = {
    "mlp": lambda backend, seed: neutral.mlp(backend, (1, 8, 8), [128, 64], 10, seed=seed),
    "conv": lambda backend, seed: neutral.convnet(backend, (1, 8, 8), [8, 16], 10, seed=seed),
    "transformer": lambda backend, seed: neutral.transformer(
        backend, digits.VOCABULARY, 10, width=32, heads=4, seed=seed
    ),
}
WORKLOADS = tuple(MODELS)


class Run(NamedTuple):
    """What came out: every step's result, and the share of the test digits recognised."""

    results: list[amp.StepResult]
    accuracy: float


def train(
    backend: str,
    workload: str = "mlp",
    *,
    policy: str | amp.Policy = "O1",
    scaler: amp.GradScaler | Literal["auto"] = "auto",
    compile: bool | Literal["auto"] = "auto",
    steps: int = 300,
    batch_size: int = 128,
    seed: int = 0,
    report: Callable[[amp.StepResult], None],
) -> Run:
    """Train one workload in one framework; ``report`` is called with each step's result."""
    training, test = digits.load(workload)

    model = MODELS[workload](backend, seed)
    optimizer = neutral.optimizer("sgd", model, lr=0.1)
    step = amp.train_step(loss_fn, model, optimizer, policy=policy, scaler=scaler, compile=compile)

    results = []
    for x, y in neutral.batches(*training, batch_size, seed=seed, steps=steps):
        result = step(x, y)
        results.append(result)
        report(result)

    accuracy = neutral.evaluate(model, *test).accuracy
    assert accuracy is not None
    return Run(results, accuracy)


def loss_fn(model: Any, x: Any, y: Any) -> Any:
    """The mean cross entropy of a batch."""
    return neutral.cross_entropy(neutral.forward(model, x), y)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    args = parse(arguments)
    print(f"{args.workload} on {args.backend}, {args.policy!r}")
    run = train(
        args.backend,
        args.workload,
        policy=args.policy,
        scaler=args.scaler,
        compile=args.compile,
        steps=args.steps,
        batch_size=args.batch_size,
        seed=args.seed,
        report=print_result,
    )
    skipped = sum(not result.applied for result in run.results)
    print(f"test accuracy {run.accuracy:.1%}, {skipped} of {args.steps} steps skipped")
    if args.json:
        args.json.write_text(json.dumps(as_json(args, run), indent=1) + "\n")


def print_result(result: amp.StepResult) -> None:
    """A line for every tenth step and for every skipped one."""
    if result.step % 10 == 0 or not result.applied:
        note = "" if result.applied else f"  skipped ({result.reason})"
        scale = f"2^{log2(result.scale):g}"
        print(f"step {result.step:4d}  loss {result.loss:8.5f}  scale {scale}{note}", flush=True)


def as_json(args: argparse.Namespace, run: Run) -> dict[str, Any]:
    """The run as plain JSON values, a list for each field of the steps' results."""
    fields = ("loss", "scale", "applied", "reason")
    return {
        "backend": args.backend,
        "workload": args.workload,
        "policy": args.policy.to_dict(),
        **{name: [getattr(result, name) for result in run.results] for name in fields},
        "accuracy": run.accuracy,
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line's values, with ``policy`` and ``scaler`` as ``train_step`` takes them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--backend", choices=BACKENDS, required=True, help="the framework")
    add("--workload", choices=WORKLOADS, default="mlp", help="the model (default: %(default)s)")
    add("--policy", default="O1", help="O0, O1, O2, O2:bfloat16, bf16-mixed, ... (default: O1)")
    add("--dtype", choices=("float16", "bfloat16"), help="the policy's low precision")
    add(
        "--execution",
        choices=("auto", "native", "simulated"),
        default="auto",
        help="kernels of that precision, or float32's with rounding (default: the faster)",
    )
    add("--compile", action="store_const", const=True, default="auto", help="compile the step")
    add("--steps", type=count, default=300, help="training steps (default: %(default)s)")
    add("--batch-size", type=count, default=128, help="digits a step (default: %(default)s)")
    add("--seed", type=int, default=0, help="of weights and batches (default: %(default)s)")
    add("--init-scale", type=float, help="first loss scale (default: 65536)")
    add("--growth-interval", type=int, help="finite steps until the scale doubles (default: 2000)")
    add("--json", type=Path, metavar="FILE", help="write every step's result to FILE")
    args = parser.parse_args(arguments)
    try:
        args.policy = chosen_policy(args.policy, args.dtype, args.execution)
        args.scaler = chosen_scaler(args.init_scale, args.growth_interval)
    except amp.AmpBridgeError as error:
        parser.error(str(error))
    return args


def count(text: str) -> int:
    """A whole number from 1."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def chosen_policy(text: str, dtype: str | None, execution: str) -> amp.Policy:
    """``text`` in any spelling; ``dtype``, if given, takes the place of its low precision."""
    policy = amp.Policy.parse(text).replace(execution=execution)
    if dtype and policy.level == "O0":
        raise amp.PolicyError(f"{text} is float32 throughout.\nHint: leave out --dtype {dtype}.")
    return policy.replace(dtype=dtype) if dtype else policy


def chosen_scaler(
    init_scale: float | None, growth_interval: int | None
) -> amp.GradScaler | Literal["auto"]:
    """A scaler with the given settings; without any, "auto": one where the policy needs it."""
    settings: dict[str, Any] = {"init_scale": init_scale, "growth_interval": growth_interval}
    given = {name: value for name, value in settings.items() if value is not None}
    return amp.GradScaler(**given) if given else "auto"


if __name__ == "__main__":
    main()
