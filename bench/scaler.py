"""What the loss scaler costs: its share of a step, its ratio to the framework's own, host syncs.

    python bench/scaler.py                      every framework, one process each
    python bench/scaler.py --framework torch    one of them, in this process

A step is a float32 loop by hand over an MLP of overhead.py, forward, backward and AdamW, without a
scaler, with the framework's own and with ours. Measured as there: all variants take turns, a figure is
the median of the paired ratios, "again" is the baseline a second time.

A host sync is counted where Python reads a tensor, which on a device it would wait for. Shown are the
scaler's: without those of the same loop that has none. (Torch's fused optimizers need none on CUDA.)
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import page
from overhead import (
    FRAMEWORKS,
    SHAPES,
    Shape,
    Step,
    batch_of,
    in_one_process_each,
    machine,
    measure,
    quartiles,
)
from page import Findings

import ampbridge as amp

WITHOUT, NATIVE, OURS, AGAIN = "without", "the framework's own", "ampbridge", "without, again"

READS = ("item", "tolist", "numpy", "__array__", "__bool__", "__int__", "__float__")
"""The methods of tensors that hand values to Python."""


def torch_steps(shape: Shape, implementation: str) -> dict[str, Step]:
    """AdamW ``fused=True``, whose kernel takes part in the scaling, or ``foreach=True``."""
    import torch
    from overhead_torch import DEVICE, finished, loss_fn, model_of

    x, y = (torch.from_numpy(array).to(DEVICE) for array in batch_of(shape))

    def loop(scaler: Any) -> Step:
        model = model_of(shape)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **{implementation: True})
        step = _by_hand(lambda: loss_fn(model, x, y), optimizer, optimizer.zero_grad, scaler)
        return finished(step)

    return _variants(loop, native=lambda: torch.amp.GradScaler(DEVICE))


def paddle_steps(shape: Shape) -> dict[str, Step]:
    """Paddle's own scaler refuses to be made on a CPU, where its kernels are all the same."""
    import paddle
    from overhead_paddle import PLACE, loss_fn, model_of
    from paddle.amp import grad_scaler

    x, y = (paddle.to_tensor(array) for array in batch_of(shape))

    def native() -> Any:
        grad_scaler.amp_global_state().amp_dtype = "float16"
        unlocked = mock.patch.object(grad_scaler, "in_dynamic_mode", return_value=False)
        with unlocked if PLACE == "cpu" else nullcontext():
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


STEPS: dict[str, dict[str, Callable[[Shape], dict[str, Step]]]] = {
    "torch": {
        "fused=True": partial(torch_steps, implementation="fused"),
        "foreach=True": partial(torch_steps, implementation="foreach"),
    },
    "tensorflow": {"compiled": tensorflow_steps},
    "paddle": {"eager": paddle_steps},
    "numpy": {"eager": numpy_steps},
}
"""By framework, the cases: makers of the steps to compare."""


# -- measured


class Costs(NamedTuple):
    """Of each variant: seconds a step, round by round, and how often Python read a tensor in one."""

    seconds: dict[str, list[float]]
    reads: dict[str, float]


def costs(
    framework: str, maker: Callable[[Shape], dict[str, Step]], options: argparse.Namespace
) -> Costs:
    """On several copies of the models, whose memory lies differently."""
    merged: dict[str, list[float]] = {}
    for _ in range(options.copies):
        steps = maker(SHAPES[options.workload])
        measured = measure(steps, options.rounds // options.copies, options.seconds)
        for name, seconds in measured.items():
            merged.setdefault(name, []).extend(seconds)
    return Costs(merged, {name: reads_of(framework, step) for name, step in steps.items()})


def reads_of(framework: str, step: Step, steps: int = 10) -> float:
    """How often a step, which has run before, reads a tensor."""
    kind = tensor_class(framework)
    if kind is None:
        return 0.0
    with counted_reads(kind) as counts:
        for _ in range(steps):
            step()
    return sum(counts) / steps


def tensor_class(framework: str) -> type | None:
    """The class of eager tensors; None where all is on the host."""
    module = importlib.import_module(framework)
    if framework == "tensorflow":
        return type(module.constant(0.0))
    return getattr(module, "Tensor", None)


@contextmanager
def counted_reads(kind: type) -> Iterator[list[int]]:
    """A list that gets a 1 for each read of a tensor; a read that is made of others is one."""
    counts: list[int] = []
    under_way: list[str] = []

    def counting(name: str, read: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if not under_way:
                counts.append(1)
            under_way.append(name)
            try:
                return read(*args, **kwargs)
            finally:
                under_way.pop()

        return counted

    with ExitStack() as patches:
        for name in READS:
            if hasattr(kind, name):
                read = counting(name, getattr(kind, name))
                patches.enter_context(mock.patch.object(kind, name, read))
        yield counts


def rows(case: str, measured: Costs) -> Iterator[tuple[str, ...]]:
    """Of one table, a line for each variant."""
    baseline, native = measured.seconds[WITHOUT], measured.seconds.get(NATIVE)
    for name, seconds in measured.seconds.items():
        _, ratio, _ = quartiles(seconds, baseline)
        share, over_native, syncs = "", "", ""
        if name in (NATIVE, OURS):
            share = f"{100 * (1 - 1 / ratio):.1f} %"
            syncs = f"{measured.reads[name] - measured.reads[WITHOUT]:g}"
        if name == OURS and native is not None:
            over_native = "{1:.3f} ({0:.3f} to {2:.3f})".format(*quartiles(seconds, native))
        milliseconds = f"{1000 * statistics.median(seconds):.3f}"
        yield case, name, milliseconds, f"{ratio:.3f}", share, over_native, syncs


COLUMNS = (
    "case",
    "variant",
    "ms a step",
    "over without",
    "its share",
    "over theirs (quartiles)",
    "host syncs",
)


def run_here(framework: str, options: argparse.Namespace) -> None:
    """Measure one framework in this process and print its table."""
    sections = [
        list(rows(case, costs(framework, maker, options)))
        for case, maker in STEPS[framework].items()
    ]
    name, where = f"scaler {framework} {options.workload}", machine(framework)
    page.report(Findings(name, f"{where}, {options.workload}", COLUMNS, sections), options)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--framework", choices=FRAMEWORKS, help="measure it in this process")
    parser.add_argument("--workload", choices=("tiny", "mid"), default="mid")
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--copies", type=int, default=4, help="of every model, among the rounds")
    parser.add_argument("--seconds", type=float, default=0.02, help="one turn of one variant")
    page.add_option(parser)
    return in_one_process_each(parser.parse_args(), run_here)


if __name__ == "__main__":
    sys.exit(main())
