"""What happens around the calls of a decorated model and of its kept layers.

Both are instance attributes named ``forward``, through which every way to call a module goes: hooks,
``torch.compile``, tracing. They are copied and pickled with their module. A shallow copy (of
``copy.copy``, of meta-learning libraries, a replica of DataParallel) has its original's, which runs for
the one that is being called.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from inspect import Signature, signature
from typing import Any, NoReturn, Protocol
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ampbridge.adapters import kept_calls
from ampbridge.adapters.backend import Decoration
from ampbridge.adapters.calling_code import warn
from ampbridge.adapters.nested import map_leaves
from ampbridge.adapters.outputs import warn_of_low_values_inside
from ampbridge.errors import UnsupportedError, first_of
from ampbridge.policies.policy import Policy
from ampbridge_torch import _private, devices
from ampbridge_torch.autocast.casting import DTYPES, region, region_on
from ampbridge_torch.autocast.mode import active_mode
from ampbridge_torch.autocast.rules import rules_for
from ampbridge_torch.autocast.simulation import CASTABLE
from ampbridge_torch.devices import DeviceType
from ampbridge_torch.model.low_weights import LowWeights, to_be_cast
from ampbridge_torch.model.master_weights import check_dtypes

FLOAT32_REGION = Policy("O0")


class Removable(Protocol):
    """A hook, as torch's ``RemovableHandle``."""

    def remove(self) -> None: ...


class NoCodeError(UnsupportedError, AttributeError):
    """The call of a decorated layer has no code; ``hasattr`` takes it for an attribute that is missing."""


class Call:
    """A replacement of ``module.forward``, while it is installed.

    ``torch.compile`` guards on the object: the same one serves each time that a model is decorated in
    the same way, so that it is traced once.

    Attributes:
        module: returns the module; None once it is gone.
    """

    def __init__(self, module: nn.Module) -> None:
        # Weakly: the module would else live until the garbage collector's next run.
        self.module: Callable[[], Any] = ref(module)
        self._replaced: Callable[..., Any] | None = None
        self._handles: list[Removable] = []

    def install(self) -> None:
        module = self.module()
        self._replaced = vars(module).get("forward")
        module.forward = self

    def remove(self) -> None:
        """Put back what was there, even if another call has replaced this one."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        module = self.module()
        calls = calls_of(module)
        if self in calls[1:]:
            calls[calls.index(self) - 1]._replaced = self._replaced
        elif self in calls:
            del module.forward
            if self._replaced is not None:
                module.forward = self._replaced
        self._replaced = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "module": self.module()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, module=ref(state["module"]))

    @property
    def __signature__(self) -> Signature:
        """The signature of the module's own ``forward``, which trainers look at."""
        module = self.module()
        return signature(self._replaced or type(module).forward.__get__(module))

    @property
    def __code__(self) -> NoReturn:
        """Refused, because ``torch.export`` looks for it first."""
        kind = type(self.module()).__name__
        raise NoCodeError(
            f"This {kind} is decorated: what exporters read is a forward that casts around the model's "
            "own.\nHint: with amp.undecorated(model): program = torch.export.export(model, inputs)"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self.module()
        # An attribute is not told whose it is. The caller knows: nn.Module's call, or a method.
        if not torch.compiler.is_dynamo_compiling():
            caller = sys._getframe(1).f_locals.get("self")
            if caller is not module and isinstance(caller, nn.Module) and self in calls_of(caller):
                module = caller
        return self._run(module, args, kwargs)

    def _run(self, module: Any, args: Sequence[Any], kwargs: Any) -> Any:
        """Call ``module``, which is the module or a shallow copy of it."""
        raise NotImplementedError

    def _forward(self, module: Any, args: Sequence[Any], kwargs: Any) -> Any:
        if isinstance(self._replaced, Call):
            return self._replaced._run(module, args, kwargs)
        if self._replaced is not None:
            return self._replaced(*args, **kwargs)
        if isinstance(module, torch.jit.ScriptModule):  # whose class has no function to call
            return module.__getattr__("forward")(*args, **kwargs)
        return type(module).forward(module, *args, **kwargs)


def calls_of(module: nn.Module) -> list[Call]:
    """The calls that are installed in ``module``, the outermost first."""
    found = []
    forward = vars(module).get("forward")
    while isinstance(forward, Call):
        found.append(forward)
        forward = forward._replaced
    return found


class ModelCall(Call):
    """The ``forward`` of a decorated model: it opens a region and casts outputs.

    ``kept`` are the layers in ``decoration.kept`` that are called, and ``weights`` those in low precision,
    at O2.
    """

    def __init__(self, model: nn.Module, decoration: Decoration, kept: Sequence[nn.Module]) -> None:
        super().__init__(model)
        self.decoration = decoration
        self.weights: LowWeights | None = None
        at_o2 = decoration.policy.level == "O2"
        self._kept_calls = [KeptCall(layer, everywhere=at_o2) for layer in kept]
        self._opens_region = decoration.standalone
        self._output_dtype = DTYPES[decoration.policy.output_dtype]
        parameters = list(model.parameters())
        one_device = len({parameter.device.type for parameter in parameters}) == 1
        self._sample = parameters[0] if one_device else None

    def install_with(self, weights: LowWeights | None, handles: Sequence[Removable]) -> None:
        """Install this call and its kept layers'; ``handles`` are other hooks, which go when it goes."""
        for call in self._kept_calls:
            call.install()
        self.install()
        self.weights = weights
        self._handles.extend(handles)
        _installed.add(self)

    def remove(self) -> None:
        super().remove()
        for call in self._kept_calls:
            call.remove()
        self.weights = None
        _installed.discard(self)

    def warn_of_new_layers(self) -> None:
        """Warn of float32 parameters that came into a model at O2 since, and that O2 would cast."""
        model, weights = self.module(), self.weights
        assert weights is not None
        came = set(map(id, to_be_cast(model, self.decoration.kept)))
        came.difference_update(map(id, weights.parameters))
        if came:
            names = [name for name, parameter in model.named_parameters() if id(parameter) in came]
            warn(
                "These parameters came into the model while it was at O2, and stay float32, as they would "
                f"with torch alone: {first_of(names)}.\n"
                "Hint: amp.decorate(model, optimizer, policy) once more, which casts them too."
            )

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        _installed.add(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> ModelCall:
        """Warns at O2: what copies a model most often averages its weights in the copy."""
        if self.weights is not None:
            own = "model" if self.weights.masters else "model, optimizer"
            warn(
                f"A copy of a model at O2 has parameters in {self.decoration.policy.dtype}, in which an "
                "average of weights stands still.\n"
                f"Hint: with amp.undecorated({own}): averaged = AveragedModel(model), or "
                "copy.deepcopy(model); and averaged.update_parameters(model) in such a block."
            )
        copied = memo[id(self)] = ModelCall.__new__(ModelCall)
        copied.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return copied

    def _run(self, module: Any, args: Sequence[Any], kwargs: Any) -> Any:
        if self.weights is None or torch.compiler.is_compiling():
            return self._called(module, args, kwargs)
        try:
            return self._called(module, args, kwargs)
        except RuntimeError:
            check_dtypes(module.parameters())  # a clearer error, where somebody has cast them
            raise

    def _called(self, module: Any, args: Sequence[Any], kwargs: Any) -> Any:
        if not self._opens_region:
            output = self._forward(module, args, kwargs)
            casts = torch.is_autocast_enabled("cpu") or casts_here()
            return self._cast(output) if casts else output
        policy, device_types = self.decoration.policy, self._device_types()
        if policy.float32 == "default" and in_force(policy, device_types):
            return self._cast(self._forward(module, args, kwargs))
        with region_on(device_types, policy):
            return self._cast(self._forward(module, args, kwargs))

    def _cast(self, output: Any) -> Any:
        wanted = self._output_dtype
        if type(output) is Tensor:  # as of most models
            present = output.dtype  # which the mode of a region sees each time
            return output if present is wanted or present not in CASTABLE else output.to(wanted)
        result = cast_nested(output, wanted)
        if not isinstance(result, Tensor) and not torch.compiler.is_compiling():
            warn_of_low_values_inside(result, self.decoration.policy.output_dtype, _dtype_name)
        return result

    def _device_types(self) -> tuple[DeviceType, ...]:
        """The devices of the model, wherever it has been moved to; all in use if it has several."""
        sample = self._sample
        if sample is None:
            return devices.in_use()
        return ("cpu" if sample.is_cpu or sample.is_meta else sample.device.type,)


class KeptCall(Call):
    """The ``forward`` of a kept layer: a region of float32, in which its inputs are float32.

    ``everywhere``: inputs are raised outside of regions too, where they may be low all the same.
    """

    def __init__(self, layer: nn.Module, everywhere: bool) -> None:
        super().__init__(layer)
        self._everywhere = everywhere

    def install(self) -> None:
        super().install()
        # A hook, and not ``forward`` alone: torch's fused transformer layers, which run past their
        # parts' ``forward``, look for hooks.
        hook = self.module().register_forward_pre_hook(self._raised, with_kwargs=True)
        self._handles.append(hook)

    def _run(self, module: Any, args: Sequence[Any], kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            kept_calls.note(self.module())
        if not casts_here():
            return self._forward(module, args, kwargs)
        with region(FLOAT32_REGION):
            return self._forward(module, args, kwargs)

    def _raised(self, layer: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        if not (self._everywhere or casts_here()):
            return None
        raised = {name: cast_nested(value, torch.float32) for name, value in kwargs.items()}
        return tuple(cast_nested(value, torch.float32) for value in args), raised


@contextmanager
def noting_kept_calls() -> Iterator[Callable[[], Collection[int] | None]]:
    """See ``Backend.noting_kept_calls``."""
    with kept_calls.noting() as called:
        yield lambda: None if _private.has_compiled() else called()


_model_calls: WeakKeyDictionary[nn.Module, dict[Any, ModelCall]] = WeakKeyDictionary()
_installed: WeakSet[ModelCall] = WeakSet()


def model_call(model: nn.Module, decoration: Decoration, kept: Sequence[nn.Module]) -> ModelCall:
    """The call of ``model`` under ``decoration``; the same one each time."""
    if any(layer is model for layer in kept):  # it would keep the model, and so itself, alive
        return ModelCall(model, decoration, kept)
    key = decoration.policy, decoration.standalone, tuple(id(layer) for layer in kept)
    known = _model_calls.setdefault(model, {})
    call = known.get(key)
    if call is None:
        call = known[key] = ModelCall(model, decoration, kept)
    call.decoration = decoration
    return call


def installed_call(model: nn.Module) -> ModelCall | None:
    """The call of a decorated model, which may be a kept layer of another one besides."""
    forward = vars(model).get("forward")
    if forward is None or type(forward) is ModelCall:
        return forward
    return next((call for call in calls_of(model) if type(call) is ModelCall), None)


def overlapping_calls(model: nn.Module) -> list[ModelCall]:
    """The calls of other decorated models that are parts of ``model``, or that it is a part of."""
    parts = set(map(id, model.modules()))
    return [
        call
        for call in list(_installed)
        # Held while it is looked at: the garbage collector may run in between.
        if (other := call.module()) is not None
        and other is not model
        and (id(other) in parts or any(part is model for part in other.modules()))
    ]


def with_masters() -> list[ModelCall]:
    """The calls of models that have masters."""
    return [call for call in list(_installed) if call.weights is not None and call.weights.masters]


# -- regions


def casts_here() -> bool:
    """Whether a region of low precision is open in this thread."""
    return any(torch.is_autocast_enabled(device_type) for device_type in devices.in_use())


def in_force(policy: Policy, device_types: tuple[DeviceType, ...]) -> bool:
    """Whether the innermost region is one of ``policy`` for these devices."""
    for device_type in device_types:
        present = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
        if present != (True, DTYPES[policy.dtype]):
            return False
    mode = active_mode()
    if mode is None:
        return rules_for(policy, device_types).is_empty
    # A region that nobody told of devices has the rules for all.
    return any(mode.rules is rules_for(policy, types) for types in (device_types, devices.in_use()))


# -- nested values


def cast_nested(value: Any, dtype: torch.dtype) -> Any:
    """``value`` with its tensors in ``dtype``; float64, and what is not floating point, stays as it is."""

    def cast(leaf: Any) -> Any:
        if isinstance(leaf, (Tensor, PackedSequence)):
            present = leaf.data.dtype if isinstance(leaf, PackedSequence) else leaf.dtype
            return leaf if present is dtype or present not in CASTABLE else leaf.to(dtype)
        if isinstance(leaf, (set, frozenset)):
            return type(leaf)(cast_nested(item, dtype) for item in leaf)
        return leaf

    return map_leaves(cast, value, (Tensor, PackedSequence))


def _dtype_name(value: Any) -> str | None:
    """The dtype of a tensor or a packed sequence; None for anything else."""
    if isinstance(value, PackedSequence):
        value = value.data
    return str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) else None
