"""O2 on a device that has 16-bit kernels: ``paddle.amp.decorate``, and the way back.

Paddle has no way back, and takes its masters from parameters that are rounded already. Here they are
made before, from the float32 values, and bear the parameters' names: Paddle keeps an optimizer's slots
under the name of the master, so that those from before are found, and those from now on afterwards.

Nothing in this module has been run on a GPU. It is tested on a virtual one (``tests/virtual_paddle``), by
Paddle's own ``decorate``, dispatcher and optimizers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import paddle
from paddle.amp.auto_cast import amp_global_state

from ampbridge.adapters.backend import Decoration
from ampbridge.adapters.low_storage import warn_of_dropped_masters, warn_of_rounded_weights
from ampbridge.errors import UnsupportedError
from ampbridge_paddle._private import method
from ampbridge_paddle.autocast.dtypes import LOW, is_float32
from ampbridge_paddle.model import compact_masters
from ampbridge_paddle.model.by_chance import let_count
from ampbridge_paddle.model.served_optimizers import (
    ADAMS,
    Watch,
    check_that_it_updates_one_by_one,
)
from ampbridge_paddle.model.subclassing import Mixin, mix_in, take_out
from ampbridge_paddle.step.gradients import parameters as parameters_of
from ampbridge_paddle.step.hybrid_groups import is_sharded, without_wrappers

Layer = Any
Optimizer = Any
Tensor = Any


def is_low(parameter: Tensor) -> bool:
    """Whether a decorated model holds ``parameter`` in 16 bits."""
    return compact_masters.policy_of(parameter) is not None


def has_masters_of_its_own(optimizer: Any) -> bool:
    """Whether ``optimizer`` was made, or decorated by Paddle, to keep masters of 16-bit parameters."""
    return bool(getattr(without_wrappers(optimizer), "_multi_precision", False))


_WAITING = "_ampbridge_masters_that_wait"
"""Where an optimizer has masters of a state that was set, whose weights have not been."""


class StepsLowParameters(Mixin):
    """Mixed into optimizers that are decorated with a model, whatever its masters are."""

    def _create_optimization_pass(self, pairs: Any, *args: Any, **kwargs: Any) -> Any:
        """Let masters take over what others wrote to their parameters, then update."""
        _adopt_waiting(self)
        _drop(self.__dict__.pop(_WAITING, {}))
        own = pairs["params"] if isinstance(pairs, dict) else pairs
        adopt([p for p, _ in own], _masters_in(self))
        return super()._create_optimization_pass(pairs, *args, **kwargs)  # type: ignore[misc]

    def state_dict(self) -> dict[str, Any]:
        _adopt_waiting(self)
        adopt(parameters_of(self), _masters_in(self))
        state: dict[str, Any] = super().state_dict()  # type: ignore[misc]
        return state

    def set_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        native = dict(state_dict)
        loaded = dict(native.pop(compact_masters.SAVED_AS, {}))
        super().set_state_dict(native)  # type: ignore[misc]
        low = {p.name for p in parameters_of(self) if is_low(p)}
        _masters_in(self).update({k: v for k, v in loaded.items() if k not in low})
        self.__dict__[_WAITING] = {k: v for k, v in loaded.items() if k in low}
        _adopt_waiting(self)

    load_state_dict = set_state_dict


class StepsCompactMasters(StepsLowParameters, compact_masters.UpdatesInFloat32):
    """Mixed into those that update parameters which are their own masters."""


class NativeO2:
    """The parameters of a model in 16 bits, and their masters.

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
        if policy.slots != "float32":
            raise UnsupportedError(
                f"{policy!r}: on a GPU paddle's slots are 'float32'.\n"
                f"Hint: {policy.replace(slots='float32')!r}"
            )
        self._policy = policy
        self._is_compact = policy.masters in ("kahan", "stochastic")
        if optimizer is not None:
            self._check(optimizer)
        self._multi_precision: list[tuple[Optimizer, bool | None]] = []
        # By name: what held the layers would hold the model, which holds this.
        self._layers = {
            name: (
                method("Layer", layer, "_dtype"),  # None of convolutions, and not their parameters'
                method("Layer", layer, "_cast_to_low_precision"),
            )
            for name, layer in model.named_sublayers(include_self=True)
        }
        lost = policy.variable_dtype != "float32"
        masters = [] if lost else [_master_of(p) for p in parameters]
        self._with_master_grad = model.parameters() if decoration.master_grad else []
        with _buffers_left_out(model.sublayers(include_self=True)):
            paddle.amp.decorate(
                models=model,
                level="O2",
                dtype=policy.dtype,
                master_grad=decoration.master_grad,
                excluded_layers=list(left_out),
            )
        # Some layers keep parameters in float32 by themselves, such as Paddle's fused ones.
        self._parameters = [p for p in parameters if not is_float32(p)]
        low = {p.name for p in self._parameters}
        self._masters = {master.name: master for master in masters if master.name in low}
        self._watch = Watch() if policy.masters is not None else None
        for p in self._parameters:
            compact_masters.make_low(p, policy)
            if policy.masters == "kahan":
                compact_masters.store(p, self._masters.pop(p.name))
        if optimizer is not None:
            self.serve(optimizer)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._policy.masters is None:
            return super().__reduce_ex__(protocol)
        # Paddle gives the parameters of a copy other names, and none of their attributes.
        raise UnsupportedError(
            f"A copy of a model that is decorated with {self._policy!r}: it would have the 16-bit values "
            "alone, and an optimizer would update these.\n"
            "Hint: step.save(path), and step.load(path) in a step of a new model; or with "
            "amp.undecorated(model): twin = copy.deepcopy(model)"
        )

    def _check(self, optimizer: Optimizer) -> None:
        if is_sharded(optimizer):
            raise UnsupportedError(
                f"{self._policy!r} of a sharded optimizer: a parameter's master is on one rank alone, and "
                "its value lost on the others.\nHint: policy='O1'"
            )
        if not isinstance(optimizer, paddle.optimizer.Optimizer):
            raise UnsupportedError(
                f"{self._policy!r} of a {type(optimizer).__name__}: masters are put into a "
                "paddle.optimizer.Optimizer.\n"
                "Hint: decorate before fleet.distributed_optimizer(optimizer)."
            )
        if self._is_compact:
            check_that_it_updates_one_by_one(optimizer, self._policy)
        elif self._policy.masters is not None and not hasattr(optimizer, "_multi_precision"):
            raise UnsupportedError(
                f"{self._policy!r} of a {type(optimizer).__name__}, which keeps no masters of 16-bit "
                "parameters: small updates would be lost.\n"
                "Hint: paddle.optimizer.AdamW(1e-3, parameters=model.parameters()); or policy='O1'"
            )

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those that are decorated with the model."""
        return [optimizer for optimizer, _ in self._multi_precision]

    def serve(self, optimizer: Optimizer) -> None:
        """Let one more optimizer step the masters, as ``paddle.amp.decorate`` does."""
        self._check(optimizer)
        multi_precision = getattr(optimizer, "_multi_precision", None)
        self._multi_precision.append((optimizer, multi_precision))
        if multi_precision is not None:
            optimizer._multi_precision = self._policy.masters == "float32"
        masters = _masters_in(optimizer)
        loaded = {p.name: masters.pop(p.name) for p in self._parameters if p.name in masters}
        masters.update(self._masters)

        def value_of(p: Tensor) -> Tensor:
            return self._masters.get(p.name, compact_masters.values_of([p]).get(p.name, p))

        _drop(_adopt_loaded(self._parameters, masters, loaded, value_of))
        if self._is_compact:
            let_count(StepsCompactMasters, optimizer)
        else:
            mix_in(StepsLowParameters, optimizer)

    def serves(self, optimizer: Optimizer) -> bool:
        """Whether ``optimizer`` may step the model."""
        native = without_wrappers(optimizer)
        return any(x is native for x in self.optimizers) and not is_sharded(optimizer)

    def masters(self) -> dict[str, Tensor]:
        """The float32 tensors that are stepped in the place of parameters, by the parameters' names.

        Of "kahan" they are copies, which ``keep`` keeps.
        """
        for each in self.optimizers:
            _adopt_waiting(each)
        present = {k: v for each in self.optimizers for k, v in _masters_in(each).items()}
        masters = {name: present.get(name, master) for name, master in self._masters.items()}
        adopt(self._parameters, masters)
        return masters | compact_masters.values_of(self._parameters)

    def keep(self, masters: Mapping[str, Tensor]) -> None:
        """Keep what was written to the result of ``masters``."""
        for p in filter(compact_masters.has_rest, self._parameters):
            compact_masters.store(p, masters[p.name])

    def release(self, model: Layer) -> None:
        """Take it all back from ``model``, the optimizer's part included."""
        masters = self.masters()
        paddle.nn.ParameterList(self._parameters).to(dtype="float32")
        for p in self._parameters:
            if p.name in masters:
                p.set_value(masters[p.name])
            compact_masters.forget(p)
        for name, layer in model.named_sublayers(include_self=True):
            if name in self._layers:
                layer._dtype, layer._cast_to_low_precision = self._layers[name]
        for optimizer, multi_precision in self._multi_precision:
            if multi_precision is not None:
                optimizer._multi_precision = multi_precision
            for name in masters:
                _masters_in(optimizer).pop(name, None)
            _drop(optimizer.__dict__.pop(_WAITING, {}))
            if not any(map(is_low, parameters_of(optimizer))):
                take_out(StepsLowParameters, optimizer)
        if self._with_master_grad:  # which Paddle keeps for the whole process
            state, gone = amp_global_state(), {id(p) for p in self._with_master_grad}
            state.model_parameters = [p for p in state.model_parameters if id(p) not in gone]
            state.use_master_grad = bool(state.model_parameters)


def _masters_in(optimizer: Optimizer) -> dict[str, Tensor]:
    masters: dict[str, Tensor] = method("Optimizer", optimizer, "_master_weights")
    return masters


def _adopt_waiting(optimizer: Optimizer) -> None:
    """Let masters of a state that was set count if their weights have been set as well, or are now."""
    waiting = optimizer.__dict__.get(_WAITING)
    if waiting:
        low, masters = [p for p in parameters_of(optimizer) if is_low(p)], _masters_in(optimizer)
        adopt(low, masters)
        optimizer.__dict__[_WAITING] = _adopt_loaded(low, masters, waiting, lambda p: p)


@paddle.no_grad()
def _adopt_loaded(
    parameters: Sequence[Tensor],
    masters: Mapping[str, Tensor],
    loaded: Mapping[str, Tensor],
    value_of: Callable[[Tensor], Tensor],
) -> Mapping[str, Tensor]:
    """Let ``loaded`` masters of ``parameters`` count, and return those of other weights.

    All numbers of a weight that was loaded are the master's or their roundings, exactly. Those of one that
    was trained since are not.
    """
    others: dict[str, Tensor] = {}
    lost: list[Any] = []
    for p in parameters:
        if p.name not in loaded:
            continue
        saved = loaded[p.name]
        if not _is_of(saved, value_of(p), p.dtype):
            others[p.name] = saved
        elif compact_masters.has_rest(p):
            compact_masters.store(p, saved)
        elif p.name in masters:
            paddle.assign(saved, output=masters[p.name])
        elif bool((saved.astype(p.dtype).astype(saved.dtype) != saved).any()):
            lost.append(compact_masters.policy_of(p))
    if lost:
        were, hint = "saved in float32 with the optimizer", lost[0].replace(masters="float32")
        warn_of_rounded_weights(lost[0], were, repr(hint))
    return others


def _drop(others: Mapping[str, Tensor]) -> None:
    """Say that these masters do not count."""
    if others:
        warn_of_dropped_masters(list(others), "set_state_dict")


def _is_of(master: Tensor, value: Tensor, low: Any) -> bool:
    """Whether a weight's ``value`` is float32 ``master`` or its rounding to ``low``, in all of its numbers.

    "kahan" rounds ties in its own way.
    """
    if master.shape != value.shape:
        return False
    value = value.astype(master.dtype)
    same = value == master
    for rounded in (master.astype(low), compact_masters.low_of(master)):
        same = same | (value == rounded.astype(master.dtype))
    return bool(same.all())


@paddle.no_grad()
def _master_of(parameter: Tensor) -> Tensor:
    master = parameter.detach().clone()
    master.name = parameter.name
    return master


@paddle.no_grad()
def take_over(master: Tensor, value: Tensor) -> None:
    """Let ``master`` be ``value``; where it rounds to that already, it keeps its further digits."""
    rounds_to_it = master.astype(value.dtype) == value
    paddle.assign(paddle.where(rounds_to_it, master, value.astype(master.dtype)), output=master)


def adopt(parameters: Iterable[Tensor], masters: Mapping[str, Tensor]) -> None:
    """Let masters take over what others wrote to low parameters: an initialisation, a clamp.

    Element by element, so that what was not written keeps its float32 value. Paddle does not count what
    ``set_value`` writes, so the values are compared, without waiting for the device.
    """
    for p in parameters:
        master = masters.get(p.name)
        if master is not None and master.shape == p.shape:
            take_over(master, p)


@contextmanager
def _buffers_left_out(layers: Iterable[Layer]) -> Iterator[None]:
    """Take the buffers out of ``layers`` for a while: Paddle would cast them with the parameters."""
    held = [(layer, method("Layer", layer, "_buffers")) for layer in layers]
    for layer, buffers in held:
        layer.__dict__["_buffers"] = type(buffers)()
    try:
        yield
    finally:
        for layer, buffers in held:
            layer.__dict__["_buffers"] = buffers


@contextmanager
def stepping_low(optimizer: Optimizer, parameters: Sequence[Tensor]) -> Iterator[None]:
    """Let ``optimizer`` step 16-bit ``parameters`` on float32 gradients in the block.

    It clips and regularizes gradients in float32, in which squares do not overflow. Its kernels get them in
    the dtypes that they take.
    """
    if all(map(is_float32, parameters)):
        yield
        return
    native: Any = without_wrappers(optimizer)
    native = getattr(native, "inner_optimizer", native)  # LookAhead's
    if not isinstance(native, StepsLowParameters):
        adopt(parameters, _masters_in(native))  # which Paddle has made
    if isinstance(native, (*ADAMS, compact_masters.UpdatesInFloat32)):
        yield
        return
    update = method("Optimizer", native, "_create_optimization_pass")
    low = tuple(LOW.values())

    def for_kernels(pairs: Any) -> Any:
        if isinstance(pairs, dict):  # a group with settings of its own
            return {**pairs, "params": for_kernels(pairs["params"])}
        return [(p, grad.astype(p.dtype) if p.dtype in low else grad) for p, grad in pairs]

    def cast_and_update(pairs: Any, *args: Any, **kwargs: Any) -> Any:
        return update(for_kernels(pairs), *args, **kwargs)

    native._create_optimization_pass = cast_and_update
    try:
        yield
    finally:
        del native._create_optimization_pass
