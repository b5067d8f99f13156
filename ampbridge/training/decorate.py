"""Decorating a model and its optimizer for a policy, in place, and undoing it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, TypeVar, overload
from weakref import WeakValueDictionary

from ampbridge.adapters.arguments import backend_of_model
from ampbridge.adapters.backend import (
    Backend,
    Decoration,
    Layer,
    Magnitude,
    Model,
    Optimizer,
    decorate_with,
    float32_of,
)
from ampbridge.adapters.calling_code import warn
from ampbridge.adapters.interrupts import uninterrupted
from ampbridge.adapters.low_storage import keeps_low, warn_of_rounded_weights
from ampbridge.adapters.tracing import called_as_it_is, constant_result
from ampbridge.errors import (
    ArgumentError,
    ArgumentTypeError,
    CallOrderError,
    PolicyError,
    UnsupportedError,
    first_of,
    listed,
    nearest,
    one_of,
)
from ampbridge.errors.flags import checked_flag
from ampbridge.errors.foreign_names import told_of
from ampbridge.policies.policy import LEVELS, OUTPUT_DTYPES, Policy
from ampbridge.policies.schedule import single

_Model = TypeVar("_Model")
_Optimizer = TypeVar("_Optimizer")


class _ByHand(Decoration):
    """A decoration that the user made with ``decorate``, and not a step."""

    __slots__ = ()


_FLOAT16_ROUNDS_TO_INF = 65520
"""From here on: halfway between its largest number, 65504, and the next power of two."""

_FLOAT16_ROUNDS_TO_ZERO = 2.0**-25
"""Up to here: half of its smallest number, a tie that goes to the even one."""


@overload
def decorate(
    model: _Model,
    optimizer: None = None,
    policy: str | Policy = "O2",
    *,
    save_dtype: str | None = None,
    master_grad: bool = False,
) -> _Model: ...


@overload
def decorate(
    model: _Model,
    optimizer: _Optimizer,
    policy: str | Policy = "O2",
    *,
    save_dtype: str | None = None,
    master_grad: bool = False,
) -> tuple[_Model, _Optimizer]: ...


@told_of("decorate")
def decorate(
    model: Model,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    policy: str | Policy = "O2",
    *,
    save_dtype: str | None = None,
    master_grad: bool = False,
) -> Any:
    """Make ``model`` run under ``policy`` wherever it is called, and prepare ``optimizer`` for it.

    At O2 parameters are in low precision, or are read in it; the optimizer updates their float32
    masters. Normalizations and kept layers stay float32, and outputs have ``policy.output_dtype``. At O1
    parameters do not change, and each call opens a region.

    Model and optimizer stay the same objects, whether or not they are built already. ``train_step``
    decorates by itself; hand-written loops and a framework's own ``fit`` need this function.
    ``undecorate`` undoes it. Another decoration is replaced; under the same policy optimizers from before
    stay decorated.

    Args:
        optimizer: the one that trains the model, or a list of all that do.
        policy: O1 or O2. O0 removes an earlier decoration.
        save_dtype: dtype of the parameters in the model's own ``state_dict``; None for the dtype in
            which the framework stores them (torch: low precision; other frameworks: float32).
        master_grad: at O2, store gradients of low-precision parameters in float32 (on torch and
            Paddle; on other frameworks they always are).

    Returns:
        ``model``, or ``(model, optimizer)`` if you passed an optimizer.

    Raises:
        ArgumentTypeError, ArgumentError: if ``model`` or ``optimizer`` is not one, or if they do not
            belong together; if ``save_dtype`` or ``master_grad`` is invalid, or would have no effect
            at this level; for low ``policy.slots`` of no optimizer.
        PolicyError: if an entry of ``policy.keep`` matches no layer.
        UnsupportedError: if the framework or the model does not support the policy. Nothing is
            changed then.
    """
    level = optimizer.partition(":")[0] if isinstance(optimizer, str) else None
    if level in LEVELS or isinstance(optimizer, Policy):
        raise ArgumentTypeError(
            f"optimizer is what trains the model, and {optimizer!r} is a policy.\n"
            f"Hint: amp.decorate(model, policy={optimizer!r})"
        )
    parsed = single(policy)
    if parsed.level == "O0" and parsed.float32 != "default":
        raise ArgumentError(
            f"{parsed!r}: O0 decorates nothing, so float32={parsed.float32!r} would have no effect.\n"
            f"Hint: with amp.autocast(amp.{parsed!r}): y = model(x)"
        )
    check_parameter_settings([parsed], save_dtype, master_grad)
    if optimizer is None and parsed.slots != "float32":
        raise ArgumentError(
            f"slots={parsed.slots!r} says how an optimizer keeps its slots, and none was passed.\n"
            "Hint: model, optimizer = amp.decorate(model, optimizer, policy)"
        )
    backend, optimizers = _passed(model, optimizer)
    wanted = _ByHand(parsed, kept_layers(backend, model, parsed), True, save_dtype, master_grad)
    _choices.add((parsed.masters, parsed.slots))
    if parsed.level != "O0":
        warn_of_low_parameters(backend, model, parsed)
    _replace(backend, model, optimizers, wanted if parsed.level != "O0" else None)
    note_trained(model)
    return model if optimizer is None else (model, optimizer)


def check_parameter_settings(policies: Sequence[Policy], save_dtype: Any, master_grad: Any) -> None:
    """Refuse a ``save_dtype`` or ``master_grad`` that has no effect under any of ``policies``."""
    if save_dtype is not None and save_dtype not in OUTPUT_DTYPES:
        msg = f"Passed save_dtype={save_dtype!r}; allowed are {listed((None, *OUTPUT_DTYPES))}.\n"
        raise ArgumentError(msg + "Hint: save_dtype='float32'")
    levels = {policy.level for policy in policies}
    if save_dtype is not None and levels == {"O0"}:
        raise ArgumentError(
            f"save_dtype={save_dtype!r} at O0, which decorates nothing: a model saves its parameters "
            "as they are.\nHint: save_dtype=None, or a policy of O1 or O2."
        )
    if checked_flag("master_grad", master_grad) and "O2" not in levels:
        raise ArgumentError(
            f"master_grad=True at {max(levels)}, where parameters and their gradients are float32.\n"
            "Hint: master_grad=False, or policy='O2'."
        )


@overload
def undecorate(model: _Model, optimizer: None = None) -> _Model: ...


@overload
def undecorate(model: _Model, optimizer: _Optimizer) -> tuple[_Model, _Optimizer]: ...


@told_of("undecorate")
def undecorate(model: Model, optimizer: Optimizer | Sequence[Optimizer] | None = None) -> Any:
    """Undo ``decorate``: weights keep their float32 values, and everything else is as before.

    A model that is not decorated does not change.

    Returns:
        ``model``, or ``(model, optimizer)`` if you passed an optimizer.

    Raises:
        ArgumentTypeError, ArgumentError: if ``model`` or ``optimizer`` is not one, or if they do not
            belong together.
    """
    backend, optimizers = _passed(model, optimizer)
    _replace(backend, model, optimizers, None)
    return model if optimizer is None else (model, optimizer)


@told_of("undecorated")
@contextmanager
def undecorated(model: Model, optimizer: Optimizer | None = None) -> Iterator[None]:
    """``undecorate`` inside of a block: parameters are float32, and the model runs undecorated.

    Use it to read weights outside of a step: to average, save or export them.

        averaged = AveragedModel(model)             # before decorate, or within such a block
        ...
        with amp.undecorated(model):
            averaged.update_parameters(model)

    Values that you write to parameters inside are kept for training; where these are in 16 bits alone, a
    warning says so if that rounds them. A model that is not decorated does not change, so the same lines
    work at every level.

    Args:
        optimizer: the optimizer with which ``model`` was decorated; most backends find it by themselves.

    Raises:
        ArgumentTypeError, ArgumentError: as ``undecorate``; without masters and with low slots, also if
            ``optimizer`` is missing and not known.
    """
    backend = backend_of_model(model, optimizer)
    present = backend.decoration(model, None)
    if present is None:
        yield
        return
    outside = ExitStack()
    try:
        with uninterrupted():
            outside.enter_context(backend.undecorated(model, optimizer))
            written = "in float32 while the model was undecorated"
            outside.callback(_look_at_weights, backend, model, present, written)
        yield
    finally:
        with uninterrupted():
            outside.close()


def for_steps(
    backend: Backend,
    model: Model,
    policy: Policy,
    save_dtype: str | None = None,
    master_grad: bool = False,
) -> Decoration | None:
    """The decoration for steps under ``policy``. Below O2 the model is unchanged outside of their regions."""
    kept = kept_layers(backend, model, policy)
    if policy.level == "O0":
        return None
    _choices.add((policy.masters, policy.slots))
    return Decoration(policy, kept, policy.level == "O2", save_dtype, master_grad)


_choices: set[tuple[str | None, str]] = {("float32", "float32")}
"""The usual masters and slots, and those for which this process has decorated a model or made a step."""


@constant_result
def warn_of_a_region_alone(policy: Policy) -> None:
    """Warn of masters and slots that a region cannot keep, where nobody has decorated a model for them."""
    if (policy.masters, policy.slots) not in _choices:
        _tell_of_a_region_alone(policy)


@cache
def _tell_of_a_region_alone(policy: Policy) -> None:
    """Warn, once in a process."""
    warn(
        f"A region of {policy!r}, and no model was decorated with these masters and slots: they say "
        "nothing here, as a region has no weights and no optimizer.\n"
        "Hint: model, optimizer = amp.decorate(model, optimizer, policy), before the loop; or, without "
        f"training, {policy.replace(masters='float32', slots='float32')!r}"
    )


_trained: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""By their identity the models that a step has trained, or that were decorated for a loop by hand."""


def note_trained(model: Model) -> None:
    """Note that the weights of ``model`` are more than those with which training begins.

    A tree of arrays has no weak references: of such models nobody is warned that ``decorate`` rounds them.
    """
    with suppress(TypeError):
        _trained[id(model)] = model


def policy_by_hand(backend: Backend, model: Model) -> Policy | None:
    """The policy with which the user decorated ``model``; None if nobody or a step did."""
    present = backend.decoration(model, None)
    return present.policy if isinstance(present, _ByHand) else None


def fit_to(
    backend: Backend,
    model: Model,
    optimizer: Optimizer | None,
    wanted: Decoration | None,
    *,
    for_good: bool = True,
) -> bool:
    """Decorate for steps, or undecorate for None; whether the model was not decorated so before.

    Args:
        for_good: false if the caller puts the weights back.
    """
    present = backend.decoration(model, optimizer)
    if wanted is None:
        if present is not None:
            _replace(backend, model, [optimizer], None)
    elif present is None or present.policy != wanted.policy:
        earlier = backend.decoration(model, None)
        if earlier is not None and earlier.policy == wanted.policy:
            wanted = earlier  # decorated without this optimizer
        _replace(backend, model, [optimizer], wanted, for_good=for_good)
        return wanted is not earlier
    return False


@called_as_it_is
def fit_for_own_loop(backend: Backend, model: Model, policy: Policy, caller: str) -> None:
    """Decorate for a loop by hand; refuse a user's decoration with another policy, and at O2 none."""
    present = backend.decoration(model, None)
    decorated = present.policy if present is not None and present.standalone else None
    if decorated == policy:
        return
    if decorated is not None:
        raise under_another_policy(caller, policy, decorated)
    if policy.level == "O2":
        raise CallOrderError(
            f"{caller} under {policy!r} of a model that is not decorated.\n"
            f"Hint: model, optimizer = amp.decorate(model, optimizer, {policy!r})"
        )
    if fit_to(backend, model, None, for_steps(backend, model, policy)):
        note_trained(model)
        warn_of_low_parameters(backend, model, policy)


def check_nobody_decorated_otherwise(
    backend: Backend,
    model: Model,
    plan: object,
    decorations: Mapping[Policy, Decoration | None],
    policy: Policy,
    before: Policy | None,
) -> None:
    """Refuse a step under ``policy`` of a model that somebody else has decorated with another one.

    The user has decorated it so; or another step has, and one of the two keeps weights or slots in 16 bits,
    to which it would round what the other has trained. Other steps may take turns.

    Args:
        plan: the step's policy, or its schedule.
        decorations: those of the step, by all of its policies.
        before: the policy of the step's last call.
    """
    present = backend.decoration(model, None)
    if present is None or present.policy in (policy, before):
        return
    is_in_plan, by_hand = present.policy in decorations, isinstance(present, _ByHand)
    if is_in_plan and (by_hand or any(present is each for each in decorations.values())):
        return
    if by_hand or any(map(keeps_low, (present.policy, *([policy] if is_in_plan else decorations)))):
        raise under_another_policy("train_step", policy if is_in_plan else plan, present.policy)


def under_another_policy(caller: str, policy: object, decorated: Policy) -> CallOrderError:
    """The error for a model that ``caller`` would run under another policy than it is decorated with."""
    return CallOrderError(
        f"{caller} under {policy!r} of a model that is decorated with {decorated!r}.\n"
        f"Hint: policy={decorated!r}, or amp.undecorate(model, optimizer) before."
    )


def _passed(
    model: Model, optimizer: Optimizer | Sequence[Optimizer] | None
) -> tuple[Backend, Sequence[Optimizer | None]]:
    """The backend of ``model``, and the optimizers that were passed; a None if there is none."""
    each_of = (optimizer or [None]) if isinstance(optimizer, (list, tuple)) else [optimizer]
    backend, *_ = [backend_of_model(model, each) for each in each_of]
    return backend, each_of


@uninterrupted()
def _replace(
    backend: Backend,
    model: Model,
    optimizers: Sequence[Optimizer | None],
    wanted: Decoration | None,
    *,
    for_good: bool = True,
) -> None:
    """Decorate with ``wanted`` in place of the present decoration, which stays if that is refused."""
    if wanted is not None:
        _check_choices(backend, wanted.policy)
        float32_of(wanted.policy, backend)  # refuses what there is not
        if optimizers[0] is not None and slots_dtype(backend, wanted.policy) != wanted.policy.slots:
            _tell_of_updates_in_16_bits(backend.name)
    earlier, served = backend.decoration(model, None), backend.served(model)
    if wanted is not None and wanted is earlier:
        for each in optimizers:
            backend.serve(model, each)
        return
    goes_on = wanted is not None and earlier is not None and wanted.policy == earlier.policy
    given = (*optimizers, *(served if goes_on else ()))
    optimizers = list({id(each): each for each in given if each is not None}.values()) or [None]
    _undecorate(backend, model, optimizers)
    if wanted is None:
        return
    try:
        under = "" if earlier is None else f", under {earlier.policy!r}"
        were = f"trained in float32{under}"
        if goes_on:  # what is low already is not rounded anew
            were = "float32 in layers that came, or were cast, since the model was decorated"
        is_told = for_good and id(model) in _trained
        _look_at_weights(backend, model, wanted, were if is_told else None)
        decorate_with(backend, model, optimizers, wanted)
    except BaseException:
        _undecorate(backend, model, optimizers)  # what an error of another kind has left half done
        if earlier is not None:
            decorate_with(backend, model, served or [None], earlier)
        raise


def _undecorate(backend: Backend, model: Model, optimizers: Sequence[Optimizer | None]) -> None:
    for each in optimizers:
        backend.undecorate(model, each)


def slots_dtype(backend: Backend, policy: Policy) -> str:
    """The dtype in which an optimizer keeps slots of low parameters between two steps."""
    has_its_own = policy.masters is not None or policy.slots != "float32"
    return policy.slots if has_its_own or not backend.updates_in_16_bits else policy.dtype


@cache
def _tell_of_updates_in_16_bits(name: str) -> None:
    """Warn, once in a process."""
    warn(
        f"masters=None on {name}: the optimizer sees the 16-bit weights and gradients alone, and its slots "
        "are in 16 bits, as without ampbridge.\n"
        "Hint: amp.Policy('O2', 'bfloat16', masters=None, slots='bfloat16') updates in float32."
    )


def _check_choices(backend: Backend, policy: Policy) -> None:
    for name in ("masters", "slots"):
        allowed = getattr(backend, name)
        if getattr(policy, name) not in allowed:
            raise UnsupportedError(
                f"{policy!r}: on {backend.name} {name} are {listed(allowed)}.\n"
                f"Hint: {policy.replace(**{name: 'float32'})!r}"
            )


def names_by_id(backend: Backend, model: Model) -> dict[int, str]:
    """The names of a model's parameters, by the parameters' ids."""
    parameters, names = backend.parameters(model), backend.parameter_names(model)
    return dict(zip(map(id, parameters), names, strict=True))


def warn_of_low_parameters(backend: Backend, model: Model, policy: Policy) -> None:
    """Warn of parameters that the user made 16-bit: ``model.half()`` trains without masters at any level."""
    low = set(map(id, backend.low_parameters(backend.parameters(model))))
    if low:
        names = [name for key, name in names_by_id(backend, model).items() if key in low]
        warn(
            f"Parameters of the model are in 16 bits by themselves: {first_of(names)}. {policy!r} has no "
            "float32 masters of them, so that updates under half a unit in the last place are lost.\n"
            f"Hint: {backend.examples['float32 model']}, before the optimizer is made: the policy then "
            "casts the parameters."
        )


def _look_at_weights(backend: Backend, model: Model, wanted: Decoration, were: str | None) -> None:
    """Warn of what the weights of an undecorated model lose under ``wanted``.

    Args:
        were: how they came to be float32, where the digits under half a unit of 16 bits count.
    """
    policy = wanted.policy
    in_float16 = (policy.level, policy.dtype) == ("O2", "float16")
    if policy.variable_dtype == "float32":
        were = None
    if not in_float16 and were is None:
        return
    magnitudes = backend.largest_magnitudes(model, wanted.kept, policy.dtype)
    if in_float16:
        _warn_of_weights_beyond_float16(magnitudes, policy)
    if were is not None and any(each.is_rounded for each in magnitudes):
        warn_of_rounded_weights(policy, were, repr(policy.replace(masters="float32")))


def _warn_of_weights_beyond_float16(magnitudes: Sequence[Magnitude], policy: Policy) -> None:
    """Warn of weights that are inf or zero in float16, which no loss scale can mend."""
    beyond = [each for each in magnitudes if _FLOAT16_ROUNDS_TO_INF <= each.largest < math.inf]
    below = [each for each in magnitudes if 0 < each.largest <= _FLOAT16_ROUNDS_TO_ZERO]
    why_beyond = (
        "Its largest number is 65504, and magnitudes of 65520 and above become inf: with such a "
        "weight in use every step is skipped."
    )
    why_below = (
        "Its smallest number is 6e-8, and magnitudes of 3e-8 and below become zero: the largest "
        "magnitude of each of these weights does."
    )
    for weights, why in ((beyond, why_beyond), (below, why_below)):
        if not weights:
            continue
        names = [
            f"{'.'.join(filter(None, (each.layer.name, each.parameter)))} ({each.largest:g})"
            for each in weights
        ]
        layers = dict.fromkeys(each.layer.name or each.layer.kind for each in weights)
        keeping = f"policy=amp.{policy.replace(keep=(*policy.keep, *layers))!r}; or "
        warn(
            f"float16 does not hold these weights of the model: {', '.join(names[:4])}"
            f"{f', ... ({len(names)} in all)' if len(names) > 4 else ''}. {why}\n"
            f"Hint: {keeping if len(layers) <= 4 else ''}policy='O2:bfloat16', which has the range of "
            "float32."
        )


def kept_layers(backend: Backend, model: Model, policy: Policy) -> list[Model]:
    """The native layers that ``policy.keep`` names, by dotted name, pattern or class name."""
    if not policy.keep:
        return []
    layers = backend.layers(model)
    for entry in policy.keep:
        if not any(_matches(entry, layer) for layer in layers):
            raise _no_such_layer(entry, layers)
    return [layer.layer for layer in layers if any(_matches(entry, layer) for entry in policy.keep)]


def _matches(entry: str, layer: Layer) -> bool:
    return entry == layer.kind or (layer.name != "" and fnmatchcase(layer.name, entry))


def _no_such_layer(entry: str, layers: Sequence[Layer]) -> PolicyError:
    names = [layer.name for layer in layers if layer.name]
    kinds = sorted({layer.kind for layer in layers if layer.name})  # the root's is the whole model
    close = nearest(entry, [*names, *kinds], 3)
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    classes = f"; classes {', '.join(kinds)}" if kinds else ""
    example = f"keep={kinds[-1:]!r}" if kinds else "amp.Policy('O0'), which keeps the whole model"
    return PolicyError(
        f"keep={[entry]!r} matches no layer of this model. "
        f"It has {shown or 'no named layers'}{classes}.\n"
        f"Hint: {one_of(close, example)}"
    )
