"""Seeing what runs: each op as it passes through the region's entry, with its gradients.

The arrays that go into an op and come out of it pass through functions that change nothing forward,
and report the gradient backward. Operators between plain arrays are out of reach, as for the region.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import numpy as np
from autograd.extend import defvjp, primitive

from ampbridge.adapters.backend import Array, Model
from ampbridge.adapters.nested import leaves, map_leaves
from ampbridge.adapters.observation import Kernel, Observer, OpCall, Operand
from ampbridge.policies import function_ops, op_table
from ampbridge_numpy import nn
from ampbridge_numpy.autocast import casting
from ampbridge_numpy.autocast.casting import DTYPES, FLOATING, dtype_of, value_of

_NAMES = {dtype: name for name, dtype in DTYPES.items()} | {casting.FLOAT64: "float64"}


@contextmanager
def observe(model: Model, observer: Observer, *, gradients: bool) -> Iterator[None]:
    """See ``Backend.observe``. NumPy does not warn of inf and NaN meanwhile: the observer sees them."""
    watch = Watch(observer, gradients)
    functions = function_ops.watched(watch.function)
    with casting.watched(watch), functions, nn.named_calls(model), np.errstate(all="ignore"):
        yield


class Watch:
    """Runs and reports the ops of one forward pass; see ``casting.watched``."""

    def __init__(self, observer: Observer, gradients: bool) -> None:
        self._observer = observer
        self._gradients = gradients
        self._numbers = count()

    def __call__(
        self,
        name: str,
        dtype: np.dtype[Any] | None,
        run: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Run an op that computes in ``dtype`` (None: in that of its inputs) and report it."""
        inputs = _operands((args, kwargs))
        canonical = _canonical(name)
        if not inputs or canonical is None:
            return run(*args, **kwargs)
        number, layer = next(self._numbers), nn.calling_layer()
        observer = self._observer
        if self._gradients:
            args, kwargs = _passing(
                (args, kwargs), lambda *left: observer.gradient_left(call, *left)
            )
        started = time.perf_counter()
        result = run(*args, **kwargs)
        seconds = time.perf_counter() - started
        if dtype is None:  # that of the first array; scalars count where there is nothing else
            ran_in = next((o for o in inputs if o.values.ndim), inputs[0]).dtype
        else:
            ran_in = _NAMES[dtype]
        call = OpCall(number, canonical, layer, ran_in, (Kernel(name, ran_in),), seconds)
        observer.op_ran(call, inputs, _operands(result))
        if self._gradients:
            result = _passing(result, partial(observer.gradient_arrived, call))
        return result

    def function(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Run a function that is an op; one with a rule in this region reports itself."""
        if casting.is_unwatched() or casting.has_rule(name):
            return function(*args, **kwargs)
        with casting.watching(None):
            return self(name, None, function, args, kwargs)


def _canonical(name: str) -> str | None:
    """The lens's name of an op; None if the op table lacks the op and it only moves values."""
    if name in op_table.ops() or op_table.is_function(name):
        return name
    known = op_table.native_names("numpy").get(name)
    if known:
        return known[0]
    return None if casting.moves_only(name) else f"numpy:{name.removeprefix('numpy.')}"


# -- arrays that are seen


def _operands(tree: Any) -> list[Operand]:
    return [_operand(value_of(x)) for x in leaves(tree) if dtype_of(x) in FLOATING]


def _operand(value: Any) -> Operand:
    return Operand(value, _NAMES[value.dtype])


def _passing(tree: Any, report: Callable[[int, Operand], None]) -> Any:
    """``tree``; ``report`` gets the place of each of its floating-point arrays and its gradient."""
    indices = count()
    return map_leaves(
        lambda x: _passed(x, partial(report, next(indices))) if dtype_of(x) in FLOATING else x, tree
    )


@primitive
def _passed(x: Any, report: Callable[[Operand], None]) -> Any:
    return x


def _passed_back(answer: Any, x: Any, report: Callable[[Operand], None]) -> Callable[[Any], Any]:
    def back(gradient: Any) -> Any:
        if dtype_of(gradient) in FLOATING:
            report(_operand(gradient))
        return gradient

    return back


defvjp(_passed, _passed_back, argnums=(0,))


# -- values and memory on the host


def to_numpy(x: Array) -> np.ndarray:
    """See ``Backend.to_numpy``."""
    value = np.asarray(value_of(x))
    return value if value.dtype == np.float64 else value.astype(np.float32)


def peak_memory(action: Callable[[], None]) -> int | None:
    """See ``Backend.peak_memory``. NumPy reports its memory to Python's ``tracemalloc``."""
    if tracemalloc.is_tracing():  # somebody else's measurement, whose peak is not ours to reset
        action()
        return None
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        action()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak - before
