"""What is passed as a model, an optimizer or a loss: checked here, in the same words for each framework.

An adapter knows what its framework's objects are (``Backend.kind``), and how a user makes them
(``Backend.examples``). Nothing has been changed when one of these checks raises.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from operator import is_
from typing import TYPE_CHECKING, Any

from ampbridge.adapters import registry
from ampbridge.adapters.backend import Array, Backend, Decoration, LossFn, Model, Optimizer
from ampbridge.adapters.nested import leaves
from ampbridge.adapters.tracing import called_as_it_is
from ampbridge.errors import (
    AmpBridgeError,
    ArgumentError,
    ArgumentTypeError,
    CallOrderError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from ampbridge.policies.policy import Policy

_WANTED = {
    "loss_fn": "a function of (model, *batch)",
    "model": "a model of {}",
    "optimizer": "an optimizer of {}",
}

_ARTICLES = {"model": "a", "optimizer": "an", "loss": "a", "scheduler": "a"}


def backend_of_training(loss_fn: LossFn, model: Model, optimizer: Optimizer) -> Backend:
    """The backend of what ``train_step`` is given; refuses what cannot be trained by a step."""
    parts = {"loss_fn": loss_fn, "model": model, "optimizer": optimizer}
    backend = _backend_of(model, optimizer, loss_fn)
    _check_kind("model", parts, backend)
    _check_same_framework(model, optimizer)
    _check_kind("optimizer", parts, backend)
    _check_kind("loss_fn", parts, backend)
    _check_that_it_needs_no_closure(optimizer)
    backend.acquaint(model, optimizer)
    check_that_it_holds_some(backend, optimizer, backend.parameters(model))
    return backend


def backend_of_model(model: Model, optimizer: Optimizer | None = None) -> Backend:
    """The backend of a model, and of an optimizer of it if there is one; refuses what is neither."""
    backend = _backend_of(model, optimizer)
    parts = {"model": model} if optimizer is None else {"model": model, "optimizer": optimizer}
    _check_kind("model", parts, backend)
    if optimizer is not None:
        _check_same_framework(model, optimizer)
        _check_kind("optimizer", parts, backend)
        backend.acquaint(model, optimizer)
        check_that_it_holds_some(backend, optimizer, backend.parameters(model))
    return backend


def backend_of_pass(loss_fn: LossFn, model: Model) -> Backend:
    """The backend of a model whose loss is to be differentiated; refuses what is neither."""
    backend = _backend_of(model, loss_fn)
    parts = {"loss_fn": loss_fn, "model": model}
    for role in ("model", "loss_fn"):
        _check_kind(role, parts, backend)
    return backend


def check_optimizer(optimizer: Optimizer, backend: Backend | None) -> None:
    """Refuse what is no optimizer, or needs a closure. ``backend`` is asked if no framework is known."""
    if backend is None or registry.framework_of_type(type(optimizer)) is not None:
        backend = _backend_of(optimizer)
    _check_kind("optimizer", {"optimizer": optimizer}, backend)
    _check_that_it_needs_no_closure(optimizer)


def check_dependence(gradients: Sequence[Array | None], switched_off_by: str | None = None) -> None:
    """Refuse a loss of which no trained parameter has a gradient: the step would train nothing.

    Args:
        switched_off_by: what stands around the pass, so that the framework records no gradients.

    Raises:
        ArgumentError: if each of ``gradients`` is None.
    """
    if all(map(is_, gradients, repeat(None))):
        if switched_off_by is not None:
            raise ArgumentError(
                f"Nothing can be differentiated inside of {switched_off_by}.\n"
                "Hint: end that block, for evaluation, ahead of the call that trains."
            )
        raise ArgumentError(
            "The loss does not depend on any trainable parameter, or was detached.\n"
            "Hint: def loss_fn(model, x, y): return cross_entropy(model(x), y)"
        )


def differentiated_already() -> CallOrderError:
    """The error for a loss function that has called ``backward()``, as in a loop by hand."""
    return CallOrderError(
        "loss_fn called loss.backward(). The step differentiates the loss by itself, and needs the graph "
        "that is gone now.\nHint: def loss_fn(model, x, y): return cross_entropy(model(x), y)"
    )


def check_that_some_train(trained: Sequence[Array], unfreeze: str) -> None:
    """Refuse a pass for no parameters at all: the step would train nothing.

    Args:
        unfreeze: the code that makes parameters of this framework trainable.

    Raises:
        ArgumentError: if ``trained`` is empty.
    """
    if not trained:
        msg = "There is nothing to train: all parameters are frozen, or there are none.\n"
        raise ArgumentError(f"{msg}Hint: {unfreeze}, for what is to be trained.")


def check_parts(
    parts: Iterable[tuple[str, Model]],
    decoration_of: Callable[[Model], Decoration | None],
    policy: Policy,
) -> None:
    """Refuse a model of which a part is decorated by itself: the part would be cast twice.

    At O2 it would. Below it, steps of a model and of its part may take turns.

    Raises:
        UnsupportedError: if one is.
    """
    for name, part in parts:
        present = decoration_of(part)
        if present is not None and "O2" in (policy.level, present.policy.level):
            raise UnsupportedError(
                f"{name!r} ({type(part).__name__}) is decorated already, by itself, for "
                f"{present.policy!r}.\n"
                "Hint: amp.undecorate(part), then amp.decorate(model)."
            )


@called_as_it_is
def check_that_it_holds_some(
    backend: Backend, optimizer: Optimizer, parameters: Sequence[Array]
) -> None:
    """Refuse an optimizer that holds other parameters only; it may hold none yet, or only frozen ones."""
    try:
        held = backend.parameters(optimizer)
    except CallOrderError:
        return
    if parameters and held and {id(p) for p in parameters}.isdisjoint(map(id, held)):
        raise ArgumentError(
            f"The optimizer ({registry.full_name(type(optimizer))}) holds none of the model's parameters.\n"
            f"Hint: {made_anew(optimizer)}, not of copies"
        )


def made_anew(optimizer: Optimizer) -> str:
    """The hint for an optimizer that holds other parameters: the user knows its settings."""
    return f"optimizer = {type(optimizer).__name__}(...), of the parameters that the model has now"


def check_masters(
    backend: Backend,
    optimizer: Optimizer,
    parameters: Sequence[Array],
    grads: Sequence[Array],
) -> None:
    """Refuse float16 parameters, by the user's own doing, that have a gradient of a scaled loss.

    ``Policy('O2', masters=None)`` is a choice, and passes.
    """
    trained = [p for p, grad in zip(parameters, grads, strict=False) if grad is not None]
    low = [p for p in backend.low_parameters(trained, optimizer) if "bfloat16" not in str(p.dtype)]
    if low:
        raise ArgumentError(
            f"{len(low)} of the {len(trained)} parameters that are trained with a loss scale are float16, "
            "without float32 masters: in their step gradients under 2e-8 are zero, and so are the squares "
            "that Adam takes of those under 1e-4.\n"
            f"Hint: {backend.examples['float32 model']}, before the optimizer is made: the policy then "
            "casts. For float16 weights with float32 masters, after that: "
            "model, optimizer = amp.decorate(model, optimizer, 'O2')"
        )


def check_that_it_holds_examples(batch: Sequence[object]) -> None:
    """Refuse a step's arrays if all are empty: the mean over no example is NaN."""
    shapes = []
    for x in batch:
        shape: Any = getattr(x, "shape", ())
        if len(shape):
            if shape[0] != 0:
                return  # the first one, of almost each batch
            shapes.append(tuple(shape))
    if shapes:
        raise ArgumentError(
            f"The batch is empty: its arrays have the shapes {', '.join(map(str, shapes))}. The loss "
            "would be NaN, and nothing would be learnt.\nHint: if len(x): step(x, y)"
        )


def check_that_a_batch_is_spread(
    loss_fn: LossFn,
    batch: Sequence[object],
    named: Mapping[str, object],
    error: Exception,
    hint: str = "step(*batch)",
) -> None:
    """Raise a clearer error if the loss takes other arguments: a loader's pair was passed as one, say."""
    one = batch[0] if len(batch) == 1 else None
    needed = [name for name in required_arguments(loss_fn) if name not in named]
    if isinstance(one, (list, tuple)) and len(needed) == 1 + len(one) > 2:
        raise ArgumentTypeError(
            f"loss_fn takes {', '.join(needed)}; passed was a {type(one).__name__} of {len(one)} in one "
            f"argument.\nHint: {hint}"
        ) from error
    if not needed or not isinstance(error, TypeError) or isinstance(error, AmpBridgeError):
        return
    try:
        inspect.signature(loss_fn).bind(None, *batch, **named)
    except TypeError as mismatch:
        if isinstance(one, Mapping):
            hint = hint.replace("*batch", f"*[batch[name] for name in {needed[1:]!r}]")
        raise ArgumentTypeError(
            f"The batch is not what loss_fn{inspect.signature(loss_fn)} takes: {mismatch}.\nHint: {hint}"
        ) from error


def check_batch(backend: Backend, batch: object, error: Exception) -> None:
    """Raise a clearer error if there is another framework's tensor in the batch.

    It is only looked for where a step failed, because it costs time.
    """
    if isinstance(error, AmpBridgeError):
        return
    for x in leaves(batch):
        what = f"an array ({registry.full_name(type(x))})"
        stray = _of_another(what, x, "a model", backend.name)
        if stray is not None:
            raise stray from error


def check_belongs(what: str, x: object, like_what: str, like: object) -> None:
    """Refuse ``x`` unless it is NumPy's, of the framework of ``like``, or of none."""
    stray = _of_another(what, x, like_what, registry.framework_of_type(type(like)))
    if stray is not None:
        raise stray


def _of_another(what: str, x: object, like_what: str, own: str | None) -> ArgumentTypeError | None:
    """The error for ``x``, if it is another framework's."""
    name = registry.framework_of_type(type(x))
    if name is None or name == own or name in registry.CORE_DEPENDENCIES:
        return None
    msg = f"Passed {what} of {name} with {like_what} of {own}.\n"
    return ArgumentTypeError(msg + "Hint: pass it as a NumPy array, such as x.numpy()")


def required_arguments(function: Any) -> list[str]:
    """The names of the arguments without which ``function`` cannot be called, as far as it tells."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    any_number = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in any_number]


def described(obj: object, backend: Backend | None = None) -> str:
    """``obj`` in a message: by what it is, or by its value where that is short."""
    if obj is None or isinstance(obj, (str, bytes, int, float)):
        return f"{obj!r:.80}"
    if isinstance(obj, type):
        return f"the class {registry.full_name(obj)}"
    if inspect.isroutine(obj):
        return f"the function {getattr(obj, '__name__', repr(obj))}"
    kind = None if backend is None else backend.kind(obj)
    name = registry.full_name(type(obj))
    return name if kind is None else f"{_ARTICLES[kind]} {kind} ({name})"


def _backend_of(*parts: object) -> Backend:
    """The backend of the first part whose framework is known; otherwise that of the one framework in use."""
    known = (registry.framework_of_type(type(part)) for part in parts)
    name = next(filter(None, known), None)
    registry.refuse_without_adapter(parts if name is None else parts[:1])
    if name is None:
        in_use = registry.names_in_use()
        name = in_use[0] if len(in_use) == 1 else registry.framework_of(parts[0])
    return registry.backend(name)


def _check_same_framework(model: Model, optimizer: Optimizer) -> None:
    name, other = (registry.framework_of_type(type(part)) for part in (model, optimizer))
    if other is not None and name is not None and other != name:
        raise ArgumentTypeError(
            f"The model {registry.full_name(type(model))} belongs to {name}, the optimizer "
            f"{registry.full_name(type(optimizer))} to {other}.\n"
            f"Hint: make the optimizer with {name}, over the model's own parameters."
        )


def _check_kind(role: str, parts: Mapping[str, object], backend: Backend) -> None:
    passed = parts[role]
    kind = backend.kind(passed)
    if role == "loss_fn" and kind is None and callable(passed):
        name = getattr(passed, "__qualname__", "<locals>")
        if "<locals>" not in name and registry.framework_of_function(passed) is not None:
            raise ArgumentTypeError(
                f"loss_fn is {_WANTED[role]}, not {passed.__module__}.{name}, which takes no model.\n"
                f"Hint: def loss_fn(model, x, y): return {name}(model(x), y)"
            )
        return
    if kind == role:
        return
    wanted = _WANTED[role].format(backend.name)
    msg = f"{role} is {wanted}, not {described(passed, backend)}.\nHint: "
    raise ArgumentTypeError(msg + _hint(role, parts, backend))


def _hint(role: str, parts: Mapping[str, object], backend: Backend) -> str:
    passed = parts[role]
    kinds = {backend.kind(part): part for part in parts.values()}
    others = [part for kind, part in kinds.items() if kind not in ("model", "optimizer")]
    all_there = len(kinds) == len(_WANTED) and len(others) == 1 and callable(others[0])
    if all_there and role != "loss_fn":
        return "amp.train_step(loss_fn, model, optimizer), in this order."
    if role == "loss_fn" and backend.kind(passed) is None:
        return "def loss_fn(model, x, y): return loss"
    if role == "optimizer" and backend.kind(passed) == "scheduler":
        return "amp.train_step(loss_fn, model, optimizer, scheduler=scheduler)"
    if role in kinds:
        return f"{', '.join(parts)}, in this order."
    held = {f".{name}": part for name, part in getattr(passed, "__dict__", {}).items()}
    if isinstance(passed, (list, tuple)):
        held = {f"[{place}]": part for place, part in enumerate(passed)}
    inside = next((name for name, part in held.items() if backend.kind(part) == role), None)
    return backend.examples[role] if inside is None else f"{role} = {role}{inside}"


def _check_that_it_needs_no_closure(optimizer: Optimizer) -> None:
    kind: type = type(optimizer)
    if _needs_a_closure(kind):
        by_hand = "with ampbridge.autocast(policy): inside of your closure, without a scaler."
        if hasattr(optimizer, "base_optimizer"):
            by_hand = (
                "compute each loss inside of ampbridge.autocast(policy). In float16, after each of the two "
                "scaler.scale(loss).backward(): base = optimizer.base_optimizer; scaler.unscale(base); "
                "optimizer.first_step() or .second_step(), unless scaler.found_inf(base); scaler.update()."
            )
        raise UnsupportedError(
            f"{kind.__name__} evaluates the loss several times a step; a training step does so once.\n"
            f"Hint: {by_hand}"
        )


# A loop by hand asks twice a step, and reading a signature takes ten times as long as all else.
@lru_cache(maxsize=128)
def _needs_a_closure(kind: type) -> bool:
    """The signature of its ``step`` tells, or the two steps that SAM and its like take."""
    twice = hasattr(kind, "first_step") and hasattr(kind, "second_step")
    return twice or "closure" in required_arguments(getattr(kind, "step", None))
