"""Watches one forward pass: which ops run, in which layers, with which inputs and kernels.

A conversion between floating dtypes is part of the op that takes its result, whoever wrote it: else
what overflows in a cast would overflow nowhere. A product and the bias that is added to it are one op.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from ampbridge.adapters.backend import Model
from ampbridge.adapters.observation import Kernel, Observer, OpCall, Operand
from ampbridge_tensorflow import _private
from ampbridge_tensorflow.autocast.functions import family_of
from ampbridge_tensorflow.autocast.keras_layers import NORMALIZATIONS
from ampbridge_tensorflow.autocast.regions import active_rules, regions
from ampbridge_tensorflow.autocast.rules import ALL_FLOATS, LOW
from ampbridge_tensorflow.lens import observed_ops
from ampbridge_tensorflow.lens.observed_gradients import (
    Arrived,
    Recorded,
    gradients_on,
    new_tape,
    recorded_on_a_tape,
    report_arrivals,
)
from ampbridge_tensorflow.lens.observed_ops import BIAS, MOVES, PRODUCTS, floating, is_floating
from ampbridge_tensorflow.model.model_layers import layers
from ampbridge_tensorflow.native_values import is_variable, native_variable, with_tensors
from ampbridge_tensorflow.probing import devices


class Input(NamedTuple):
    """What was handed to an op.

    Attributes:
        source: the tensor that the op took, or the handle of a variable that it read.
        operand: the same before it was converted.
        dtypes: the dtypes through which it was converted, from that of ``source`` back.
    """

    source: tf.Tensor
    operand: Operand
    dtypes: tuple[tf.DType, ...] = ()


class RunningOp:
    """One call of an op while it runs; a product stays open for its bias."""

    def __init__(self, op: str, layer: str, *, simulated: bool, gradients: bool) -> None:
        self.op = op
        self.layer = layer
        self.inputs: list[Input] = []
        self.outputs: list[tf.Tensor] = []
        self.kernels: list[Kernel] = []
        self.recorded: list[Recorded] = []
        self.reported: OpCall | None = None
        self.seconds = 0.0
        self._made: list[Any] = []
        self._simulated = simulated
        self.rounded_to: str | None = None
        """The dtype to which a simulated op was rounded."""
        self._tape = new_tape() if gradients else None

    def run(self, inputs: Sequence[Input], action: Callable[[], Any]) -> Any:
        """Run the op, or what else belongs to it; nothing has happened if it raises."""
        started = time.perf_counter()
        with self.on_tape(inputs):
            result = action()
        self.seconds += time.perf_counter() - started
        self.inputs += inputs
        self._made += tf.nest.flatten(result)
        return result

    @contextmanager
    def on_tape(self, inputs: Sequence[Input]) -> Iterator[None]:
        """A block that its tape records; it has no tape if gradients are not reported."""
        if self._tape is None:
            yield
            return
        with self._tape:
            self._tape.watch([each.source for each in inputs])
            yield

    def record(self, op: str, run: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Run what tapes record as ``op``."""
        result, recorded = recorded_on_a_tape(op, run, arguments)
        self.recorded.append(recorded)
        return result

    def notice_kernel(self, op: str, arguments: Sequence[Any], result: Any) -> None:
        """Remember a kernel of it and the dtype in which that ran."""
        if observed_ops.of_own_op(op) is not None:
            # What reads a variable has no floating-point input, but an output.
            values = floating((list(arguments), result))
            self.kernels += [Kernel(op, x.dtype.name) for x in values[:1]]

    def notice_rounding(self, result: Any) -> None:
        """A low result of a simulated op, or of a part of it, has been rounded."""
        low = [x.dtype.name for x in floating(result) if x.dtype in LOW]
        if self._simulated and low:
            self.rounded_to = low[0]

    def has_made(self, x: Any) -> bool:
        """Whether it is one of its results so far."""
        return any(x is result for result in self._made)

    def leaving(self, arrived: Arrived) -> Iterator[tuple[int, tf.Tensor]]:
        """The places of its inputs with their gradients; an input that is there twice comes once."""
        assert self._tape is not None  # else nothing arrives
        first: dict[int, tuple[int, Input]] = {}
        for place, each in enumerate(self.inputs):
            first.setdefault(id(each.source), (place, each))
        sources = [each.source for _, each in first.values()]
        gradients = gradients_on(self._tape, arrived, sources)
        for (place, each), gradient in zip(first.values(), gradients, strict=True):
            if gradient is not None:
                gradient = tf.convert_to_tensor(gradient)
                for dtype in each.dtypes:
                    gradient = tf.cast(gradient, dtype)
                yield place, gradient


def _operand(tensor: tf.Tensor) -> Operand:
    return Operand(tensor, tensor.dtype.name)


class Watch:
    """Reports the ops of one forward pass."""

    def __init__(self, model: Model, observer: Observer, gradients: bool) -> None:
        self.is_paused = False
        self._model = model
        self._observer = observer
        self._gradients = gradients
        self._names: dict[int, tuple[str | None, Any]] = {}
        self._layer = ""
        """The name of the layer that is running."""
        self._product: str | None = None
        """The op that the product in that layer is, if it is a layer of one."""
        self._open: RunningOp | None = None
        """The op that is running."""
        self._pending: RunningOp | None = None
        """The product that waits for its bias."""
        self._last: RunningOp | None = None
        self._numbers = count()
        self._conversions: dict[int, tuple[tf.Tensor, tf.Tensor]] = {}
        """Tensors that were converted, by their ids, beside what they were converted from."""
        synchronous = tf.config.experimental.get_synchronous_execution()
        self._waits = synchronous and devices()[0].kind == "cpu"
        """Whether an op has been computed when its call returns."""

    # -- ops

    def op(
        self,
        name: str,
        run: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        layer: Any = None,
    ) -> Any:
        """Run and report an op; within another one, just run it.

        Args:
            layer: that it is the call of, whose variables it takes besides its arguments.
        """
        if self._open is not None:
            result = run(*args, **kwargs)
            self._open.notice_rounding(result)
            return result
        given = tf.nest.flatten((args, kwargs, [] if layer is None else layer.variables))
        call = self._gone_on_with(name, given) or self._begun(name)
        inputs = [self._input(x) for x in given if not call.has_made(x)]
        self._open = call
        try:
            result = call.run([x for x in inputs if x is not None], lambda: run(*args, **kwargs))
        finally:
            self._open = None
        self._last = call
        if layer is None or isinstance(layer, NORMALIZATIONS):  # of others, their parts are
            call.notice_rounding(result)
        self._end(call, name, result)
        return result

    def own_op(self, op: str, run: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Run one of TensorFlow's own, and report it unless it only moves, makes or converts values."""
        name = observed_ops.of_own_op(op)
        if name is not None:
            return self.op(name, lambda *given: run(*map(_read, given)), arguments, {})
        if self._open is not None:
            return run(*map(_read, arguments))
        result = run(*arguments)
        if op == "Cast" and is_floating(arguments[0]) and is_floating(result):
            self._conversions[id(result)] = (result, arguments[0])
        return result

    def kernel(
        self, op: str, run: Callable[..., Any], arguments: Sequence[Any], recorded_now: bool = True
    ) -> Any:
        """Run what reaches TensorFlow below the casts; tapes may learn of it later, in ``record``."""
        call = self._open
        if call is None:
            return run(*arguments)
        records = recorded_now and self._gradients
        result = call.record(op, run, arguments) if records else run(*arguments)
        call.notice_kernel(op, arguments, result)
        return result

    def record(
        self, op: str, run: Callable[..., Any], inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> None:
        """Have tapes learn of an op that has run."""

        def recording(*given: Any) -> Sequence[Any]:
            run(given)
            return outputs

        call = self._open or self._last
        if not self._gradients or call is None:
            run(inputs)
        elif call is self._open:
            call.record(op, recording, inputs)
        elif any(map(call.has_made, outputs)):
            with call.on_tape(call.inputs):
                call.record(op, recording, inputs)
            if call.reported is not None:
                self._report_gradients(call, call.reported)
        else:
            run(inputs)

    def _begun(self, name: str) -> RunningOp:
        self.report_pending()
        rules = active_rules()
        if self._product is not None and family_of(name) in PRODUCTS:
            name = self._product
        simulated = rules is not None and rules.simulated
        return RunningOp(name, self._layer, simulated=simulated, gradients=self._gradients)

    def _gone_on_with(self, name: str, given: Sequence[Any]) -> RunningOp | None:
        """The pending product, if this op adds its bias, or gives the bias in its layer a shape."""
        call, in_layer = self._pending, self._product is not None
        if call is None:
            return None
        adds = name == BIAS or (in_layer and name == "add")
        if adds and call.has_made(given[0]):
            return call
        shapes = in_layer and family_of(name) in MOVES and not any(map(call.has_made, given))
        return call if shapes else None

    def _end(self, call: RunningOp, name: str, result: Any) -> None:
        """Report it, unless more may belong to it."""
        goes_on = call is self._pending
        if goes_on and family_of(name) in MOVES:
            return
        call.outputs = floating(result)
        if goes_on:
            call.op = "linear" if call.op in ("matmul", "bmm") else call.op
            self.report_pending()
        elif family_of(name) in PRODUCTS:
            self._pending = call
        else:
            self._report(call)

    def report_pending(self) -> None:
        """Report a product to which nothing was added."""
        call, self._pending = self._pending, None
        if call is not None:
            self._report(call)

    def _report(self, call: RunningOp) -> None:
        if not (call.kernels and call.inputs):  # nothing was computed, or numbers were only made
            return
        kernels, seconds = tuple(call.kernels), call.seconds if self._waits else None
        dtype = call.rounded_to or kernels[0].dtype
        reported = OpCall(next(self._numbers), call.op, call.layer, dtype, kernels, seconds)
        call.reported = reported
        with self._apart():
            inputs = [each.operand for each in call.inputs]
            self._observer.op_ran(reported, inputs, list(map(_operand, call.outputs)))
        if self._gradients:
            self._report_gradients(call, reported)

    def _report_gradients(self, call: RunningOp, reported: OpCall) -> None:
        """Have the tapes report the gradients of its outputs, and compute those of its inputs."""
        places = {id(output): place for place, output in enumerate(call.outputs)}
        observer = self._observer

        def report(arrived: Arrived) -> None:
            for output, gradient in arrived:
                with self._apart():
                    whole = tf.convert_to_tensor(gradient)
                    observer.gradient_arrived(reported, places[id(output)], _operand(whole))
            with _unrecorded():
                leaving = list(call.leaving(arrived))
            for place, gradient in leaving:
                with self._apart():
                    observer.gradient_left(reported, place, _operand(gradient))

        report_arrivals(call.recorded, places, report)

    # -- what is not seen

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A block that is no part of the forward pass."""
        before, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = before

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """A block of our own code or the observer's: it is not cast either, and on no tape."""
        with self.paused(), regions.paused(None), _unrecorded():
            yield

    # -- what an op is handed

    def _input(self, x: Any) -> Input | None:
        """``x`` as an input, if it is a floating-point array or a variable that holds one."""
        if isinstance(x, tf.Tensor) and x.dtype == tf.resource:
            x = self._variables.get(id(x))
        if is_variable(x):
            with _private.value(_private.LAYER_VARIABLES)(None):  # as it is, whoever reads it
                variable = native_variable(x)
            if variable.dtype not in ALL_FLOATS:
                return None
            with self._apart():
                return Input(variable.handle, _operand(variable.value()))
        if isinstance(x, np.ndarray) and x.dtype.name in ("float16", "float32", "float64"):
            x = tf.constant(x)
        if not is_floating(x):
            return None
        origin, dtypes = x, []
        while id(origin) in self._conversions:
            origin = self._conversions[id(origin)][1]
            dtypes.append(origin.dtype)
        return Input(x, _operand(origin), tuple(dtypes))

    @cached_property
    def _variables(self) -> Mapping[int, tf.Variable]:
        """The model's variables, by the ids of their handles."""
        variables = map(native_variable, self._model.variables)
        return {id(variable.handle): variable for variable in variables}

    # -- layers

    @contextmanager
    def running(self, layer: Any) -> Iterator[None]:
        """A call of a layer. A layer that is no part of the model counts as its caller."""
        name, caller = self._name(layer), (self._layer, self._product)
        self._layer = self._layer if name is None else name
        self._product = observed_ops.of_product_in(layer)
        try:
            yield
        finally:
            self._layer, self._product = caller
        if self._open is None:
            self.report_pending()

    def _name(self, layer: Any) -> str | None:
        """The layer's dotted name, also if it was made meanwhile; None if it is no part of the model."""
        if id(layer) not in self._names:
            self._names |= {id(part.layer): (part.name, part.layer) for part in layers(self._model)}
            self._names.setdefault(id(layer), (None, layer))
        return self._names[id(layer)][0]


def _unrecorded() -> AbstractContextManager[None]:
    without_tapes: AbstractContextManager[None] = _private.value(_private.STOP_RECORDING)()
    return without_tapes


def _read(argument: Any) -> Any:
    """A variable as the tensor that TensorFlow's function would read from it, also in a list."""
    return with_tensors(argument, is_variable)
