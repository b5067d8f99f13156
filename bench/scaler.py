"""What the loss scaler costs: its share of a step, and its ratio to the framework's own scaler.

    python bench/scaler.py                      every framework, one process each
    python bench/scaler.py --framework torch    one of them, in this process

A step is a float32 loop by hand over the "mid" model of overhead.py, forward, backward and AdamW,
without a scaler, with the framework's own and with ours. Measured as there: all variants take turns,
a figure is the median of the paired ratios, "again" is the baseline a second time.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

from overhead import FRAMEWORKS, SHAPES, Shape, Step, batch_of, machine, measure

import ampbridge as amp

WITHOUT, NATIVE, OURS, AGAIN = "without", "the framework's own", "ampbridge", "without, again"


def torch_steps(shape: Shape) -> dict[str, Step]:
    """Fused AdamW, whose kernel takes part in the scaling on CUDA."""
    import torch
    from overhead_torch import DEVICE, loss_fn, model_of

    x, y = (torch.from_numpy(array).to(DEVICE) for array in batch_of(shape))

    def loop(scaler: Any) -> Step:
        model = model_of(shape)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

        return _by_hand(lambda: loss_fn(model, x, y), optimizer, optimizer.zero_grad, scaler)

    return _variants(loop, native=lambda: torch.amp.GradScaler(DEVICE))


def paddle_steps(shape: Shape) -> dict[str, Step]:
    """Paddle's own scaler refuses to be made on a CPU, where its kernels are all the same."""
    import paddle
    from overhead_paddle import GPU, loss_fn, model_of
    from paddle.amp import grad_scaler

    x, y = (paddle.to_tensor(array) for array in batch_of(shape))

    def native() -> Any:
        grad_scaler.amp_global_state().amp_dtype = "float16"
        unlocked = mock.patch.object(grad_scaler, "in_dynamic_mode", return_value=False)
        with nullcontext() if GPU else unlocked:
            return paddle.amp.GradScaler()

    def loop(scaler: Any) -> Step:
        model = model_of(shape)
        optimizer = paddle.optimizer.AdamW(1e-4, parameters=model.parameters())

        return _by_hand(lambda: loss_fn(model, x, y), optimizer, optimizer.clear_grad, scaler)

    return _variants(loop, native)


def tensorflow_steps(shape: Shape) -> dict[str, Step]:
    """Keras' LossScaleOptimizer, and ours for ``fit``, in a compiled loop."""
    import keras
    import tensorflow as tf
    from overhead_tensorflow import loss_fn, model_of

    from ampbridge_tensorflow import LossScaleOptimizer

    x, y = (tf.constant(array) for array in batch_of(shape))

    def loop(wrap: Callable[[Any], Any] | None) -> Step:
        model = model_of(shape, "float32")
        optimizer = keras.optimizers.AdamW(1e-4)
        if wrap is not None:
            optimizer = wrap(optimizer)
        optimizer.build(model.trainable_variables)

        @tf.function
        def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = loss_fn(model, x, y)
                scaled = loss if wrap is None else optimizer.scale_loss(loss)
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(scaled, variables), variables, strict=True))
            return loss

        return lambda: step(x, y)

    return {
        WITHOUT: loop(None),
        NATIVE: loop(keras.optimizers.LossScaleOptimizer),
        OURS: loop(lambda optimizer: LossScaleOptimizer(optimizer, amp.GradScaler())),
        AGAIN: loop(None),
    }


def numpy_steps(shape: Shape) -> dict[str, Step]:
    """NumPy has no scaler of its own."""
    from overhead_numpy import loss_fn, model_of

    from ampbridge_numpy import optim

    x, y = batch_of(shape)

    def loop(scaler: amp.GradScaler | None) -> Step:
        model = model_of(shape)
        optimizer = optim.AdamW(model.parameters(), lr=1e-4)

        def step() -> None:
            _, grads = amp.value_and_grad(loss_fn, model, x, y, policy="O0", scaler=scaler)
            if scaler is None:
                optimizer.step(list(grads))
            else:
                scaler.step(optimizer, grads)
                scaler.update()

        return step

    return {WITHOUT: loop(None), OURS: loop(amp.GradScaler()), AGAIN: loop(None)}


def _by_hand(
    forward: Callable[[], Any], optimizer: Any, clear: Callable[[], Any], scaler: Any
) -> Step:
    """The loop of torch's and Paddle's guides."""

    def step() -> None:
        loss = forward()
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        clear()

    return step


def _variants(loop: Callable[[Any], Step], native: Callable[[], Any]) -> dict[str, Step]:
    return {
        WITHOUT: loop(None),
        NATIVE: loop(native()),
        OURS: loop(amp.GradScaler()),
        AGAIN: loop(None),
    }


STEPS = {
    "torch": torch_steps,
    "tensorflow": tensorflow_steps,
    "paddle": paddle_steps,
    "numpy": numpy_steps,
}


def times_of(framework: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds a step, round by round, on several copies of the models."""
    merged: dict[str, list[float]] = {}
    for _ in range(options.copies):
        steps = STEPS[framework](SHAPES["mid"])
        for name, seconds in measure(
            steps, options.rounds // options.copies, options.seconds
        ).items():
            merged.setdefault(name, []).extend(seconds)
    return merged


def paired(over: list[float], under: list[float]) -> float:
    """The median of the ratios round by round."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def run_here(framework: str, options: argparse.Namespace) -> None:
    """Measure one framework in this process and print its table."""
    from rich.console import Console
    from rich.table import Table

    times = times_of(framework, options)
    table = Table("variant", "ms a step", "over the step without", "its share", "over the own")
    for name, seconds in times.items():
        ratio = paired(seconds, times[WITHOUT])
        table.add_row(
            name,
            f"{1000 * statistics.median(seconds):.3f}",
            f"{ratio:.3f}",
            f"{100 * (1 - 1 / ratio):.1f} %" if name in (NATIVE, OURS) else "",
            f"{paired(seconds, times[NATIVE]):.3f}" if name == OURS and NATIVE in times else "",
        )
    console = Console(width=120)
    console.print(machine(framework))
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--framework", choices=FRAMEWORKS, help="measure it in this process")
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--copies", type=int, default=4, help="of every model, among the rounds")
    parser.add_argument("--seconds", type=float, default=0.02, help="one turn of one variant")
    options = parser.parse_args()
    if options.framework:
        importlib.import_module(options.framework)
        run_here(options.framework, options)
        return 0
    commands = ([sys.executable, *sys.argv, "--framework", name] for name in FRAMEWORKS)
    return max(subprocess.run(command, check=False).returncode for command in commands)


if __name__ == "__main__":
    sys.exit(main())
