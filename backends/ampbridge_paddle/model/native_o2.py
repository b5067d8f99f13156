"""O2 on a device that has 16-bit kernels: ``paddle.amp.decorate``, and the way back.

Paddle has no way back, and takes its masters from parameters that are rounded already. Here they are
made before, from the float32 values, and bear the parameters' names: Paddle keeps an optimizer's slots
under the name of the master, so that those from before are found, and those from now on afterwards.

Nothing in this module has been run on a GPU. It is tested on a virtual one (``tests/virtual_paddle``), by
Paddle's own ``decorate``, dispatcher and optimizers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import paddle
from paddle.amp.auto_cast import amp_global_state

from ampbridge.adapters.backend import Decoration
from ampbridge.errors import UnsupportedError
from ampbridge_paddle._private import method
from ampbridge_paddle.autocast.dtypes import LOW, is_float32
from ampbridge_paddle.step.hybrid_groups import is_sharded, without_wrappers

Layer = Any
Optimizer = Any
Tensor = Any


_LOW = "_ampbridge_native_o2"


def is_low(parameter: Tensor) -> bool:
    """Whether a decorated model holds ``parameter`` in 16 bits."""
    return _LOW in vars(parameter)


class NativeO2:
    """See ``ParametersAtO2``.

    Args:
        left_out: layers whose own parameters stay float32.
    """

    def __init__(
        self,
        model: Layer,
        optimizer: Optimizer | None,
        decoration: Decoration,
        parameters: Sequence[Tensor],
        left_out: Sequence[Layer],
    ) -> None:
        policy = decoration.policy
        if is_sharded(optimizer):
            msg = (
                f"{policy!r} of a sharded optimizer: a parameter's master is on one rank alone, and "
                "its value lost on the others.\nHint: policy='O1'"
            )
            raise UnsupportedError(msg)
        if optimizer is not None and not isinstance(optimizer, paddle.optimizer.Optimizer):
            msg = (
                f"{policy!r} of a {type(optimizer).__name__}: masters are put into a "
                "paddle.optimizer.Optimizer.\n"
                "Hint: decorate before fleet.distributed_optimizer(optimizer)."
            )
            raise UnsupportedError(msg)
        self._parameters, self._optimizer = list(parameters), optimizer
        # By name: what held the layers would hold the model, which holds this.
        self._layers = {name: _LayerBefore(layer) for name, layer in _named_layers(model)}
        self._masters = {p.name: _master_of(p) for p in parameters} if policy.master_weights else {}
        for p in parameters:
            setattr(p, _LOW, True)
        self._multi_precision = getattr(optimizer, "_multi_precision", None)
        self._with_master_grad = model.parameters() if decoration.master_grad else []
        with _buffers_left_out(model.sublayers(include_self=True)):
            paddle.amp.decorate(
                models=model,
                optimizers=optimizer,
                level="O2",
                dtype=policy.dtype,
                master_weight=policy.master_weights,
                master_grad=decoration.master_grad,
                excluded_layers=list(left_out),
            )
        if optimizer is not None:
            _masters_in(optimizer).update(self._masters)

    def serves(self, optimizer: Optimizer) -> bool:
        return without_wrappers(optimizer) is self._optimizer and not is_sharded(optimizer)

    def masters(self) -> dict[str, Tensor]:
        present = {} if self._optimizer is None else _masters_in(self._optimizer)
        return {name: present.get(name, master) for name, master in self._masters.items()}

    def release(self, model: Layer) -> None:
        for p in self._parameters:
            vars(p).pop(_LOW, None)
        masters = self._take_masters()
        with _buffers_left_out(model.sublayers(include_self=True)):
            for name, layer in _named_layers(model):
                if name in self._layers:
                    self._layers[name].restore(layer)
        for p in self._parameters:
            if p.name in masters:
                p.set_value(masters[p.name])
        _forget_master_gradients(self._with_master_grad)

    def _take_masters(self) -> dict[str, Tensor]:
        """The present masters, the optimizer's if it has any; it keeps none."""
        if self._optimizer is None:
            return self._masters
        self._optimizer._multi_precision = self._multi_precision
        present = _masters_in(self._optimizer)
        return {name: present.pop(name, master) for name, master in self._masters.items()}


def _named_layers(model: Layer) -> Iterator[tuple[str, Layer]]:
    return iter(model.named_sublayers(include_self=True))


def _masters_in(optimizer: Optimizer) -> dict[str, Tensor]:
    masters: dict[str, Tensor] = method("Optimizer", optimizer, "_master_weights")
    return masters


@paddle.no_grad()
def _master_of(parameter: Tensor) -> Tensor:
    master = parameter.detach().clone()
    master.name = parameter.name
    return master


@contextmanager
def _buffers_left_out(layers: Iterable[Layer]) -> Iterator[None]:
    """``layers`` without their buffers, which Paddle would cast with the parameters."""
    held = [(layer, method("Layer", layer, "_buffers")) for layer in layers]
    for layer, buffers in held:
        layer.__dict__["_buffers"] = type(buffers)()
    try:
        yield
    finally:
        for layer, buffers in held:
            layer.__dict__["_buffers"] = buffers


class _LayerBefore:
    """What ``paddle.amp.decorate`` changes about a layer."""

    def __init__(self, layer: Layer) -> None:
        self._dtype = method("Layer", layer, "_dtype")
        self._casts = method("Layer", layer, "_cast_to_low_precision")

    def restore(self, layer: Layer) -> None:
        if method("Layer", layer, "_dtype") != self._dtype:
            to_dtype = method("Layer", layer, "_to_impl")
            to_dtype(dtype=self._dtype, include_sublayers=False, floating_only=True)
        layer._cast_to_low_precision = self._casts


def _forget_master_gradients(parameters: Sequence[Tensor]) -> None:
    """Paddle keeps them for the whole process."""
    if not parameters:
        return
    state = amp_global_state()
    gone = {id(p) for p in parameters}
    state.model_parameters = [p for p in state.model_parameters if id(p) not in gone]
    state.use_master_grad = bool(state.model_parameters)


# Whose kernels take float32 gradients of 16-bit parameters.
_WITH_FLOAT32_GRADIENTS = (paddle.optimizer.Adam, paddle.optimizer.AdamW)


def gradient_for(optimizer: Optimizer, parameter: Tensor, grad: Tensor | None) -> Tensor | None:
    """``grad`` (float32) in a dtype in which ``optimizer`` steps ``parameter``."""
    if grad is None or is_float32(parameter) or parameter.dtype not in LOW.values():
        return grad
    takes_float32 = isinstance(without_wrappers(optimizer), _WITH_FLOAT32_GRADIENTS)
    return grad if takes_float32 else grad.astype(parameter.dtype)
