"""Fitting a model and its optimizer to a policy, in place, and taking it back."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from ampbridge import registry
from ampbridge.backend import Backend, Decoration, Layer, Model, Optimizer
from ampbridge.errors import AmpBridgeError, ArgumentError, PolicyError, nearest
from ampbridge.policy import OUTPUT_DTYPES, Policy
from ampbridge.schedule import single


def decorate(
    model: Model,
    optimizer: Optimizer | None = None,
    policy: str | Policy = "O2",
    *,
    save_dtype: str | None = None,
    master_grad: bool = False,
) -> Any:
    """Make ``model`` run under ``policy`` wherever it is called, and ``optimizer`` follow.

    At O2 parameters are in low precision, or read so; the optimizer updates float32 masters of
    them. Normalizations and kept layers stay float32, inputs are cast, outputs come in
    ``policy.output_dtype``. At O1 parameters stay as they are, and each call opens a region.

    Model and optimizer stay the same objects, built already or not. ``train_step`` does this by
    itself; loops by hand and a framework's own ``fit`` need it. ``undecorate`` takes it back.

    Args:
        policy: O1 or O2. O0 takes an earlier decoration back.
        save_dtype: dtype of the parameters in the model's own ``state_dict``; None for that in
            which the framework holds them (torch: low precision; elsewhere float32).
        master_grad: hold gradients of low-precision parameters in float32 (torch's and Paddle's
            low ones; elsewhere they are float32 anyway).

    Returns:
        ``model``, or ``(model, optimizer)`` if one was given.

    Raises:
        PolicyError: if an entry of ``policy.keep`` matches no layer.
        UnsupportedError: for what the framework or the model cannot be given. Nothing is changed.
    """
    parsed = single(policy)
    checked_save_dtype(save_dtype)
    backend = registry.backend(
        registry.framework_of(model)
        if optimizer is None
        else registry.check_same_framework(model, optimizer)
    )
    wanted = Decoration(parsed, kept_layers(backend, model, parsed), True, save_dtype, master_grad)
    _replace(backend, model, optimizer, wanted if parsed.level != "O0" else None)
    return model if optimizer is None else (model, optimizer)


def checked_save_dtype(value: Any) -> str | None:
    """A dtype of saved parameters, None for that in which they are held.

    Raises:
        ArgumentError: for anything else.
    """
    if value is None or value in OUTPUT_DTYPES:
        chosen: str | None = value
        return chosen
    allowed = ", ".join(map(repr, OUTPUT_DTYPES))
    msg = f"Passed save_dtype={value!r}; allowed are None, {allowed}.\n"
    raise ArgumentError(msg + "Hint: save_dtype='float32'")


def undecorate(model: Model, optimizer: Optimizer | None = None) -> Any:
    """Take ``decorate`` back: weights keep their float32 values, everything else is as before.

    What is not decorated is left as it is.

    Returns:
        ``model``, or ``(model, optimizer)`` if one was given.
    """
    registry.backend(registry.framework_of(model)).undecorate(model, optimizer)
    return model if optimizer is None else (model, optimizer)


def for_steps(
    backend: Backend,
    model: Model,
    policy: Policy,
    save_dtype: str | None = None,
    master_grad: bool = False,
) -> Decoration:
    """What steps under ``policy`` need. Below O2 the model stays as it is outside of their regions."""
    kept = kept_layers(backend, model, policy)
    return Decoration(policy, kept, policy.level == "O2", save_dtype, master_grad)


def fit_to(backend: Backend, model: Model, optimizer: Optimizer | None, wanted: Decoration) -> None:
    """Decorate for steps under a policy, unless it is done already. For ``train_step``."""
    present = backend.decoration(model, optimizer)
    if wanted.policy.level == "O0":
        if present is not None:
            backend.undecorate(model, optimizer)
    elif present is None or present.policy != wanted.policy:
        earlier = backend.decoration(model, None)
        if earlier is not None and earlier.policy == wanted.policy:
            wanted = earlier  # decorated without this optimizer
        _replace(backend, model, optimizer, wanted)


def _replace(
    backend: Backend, model: Model, optimizer: Optimizer | None, wanted: Decoration | None
) -> None:
    """``wanted`` in the place of what is there; if it is refused, that stays."""
    earlier = backend.decoration(model, None)
    backend.undecorate(model, optimizer)
    if wanted is None:
        return
    try:
        backend.decorate(model, optimizer, wanted)
    except AmpBridgeError:
        if earlier is not None:
            backend.decorate(model, optimizer, earlier)
        raise


def kept_layers(backend: Backend, model: Model, policy: Policy) -> list[Model]:
    """The native layers that ``policy.keep`` names, by dotted name, pattern or class name.

    Raises:
        PolicyError: if an entry matches none; it suggests the nearest names.
    """
    if not policy.keep:
        return []
    layers = backend.layers(model)
    for entry in policy.keep:
        if not any(_matches(entry, layer) for layer in layers):
            raise PolicyError(_no_such_layer(entry, layers))
    return [layer.layer for layer in layers if any(_matches(entry, layer) for entry in policy.keep)]


def _matches(entry: str, layer: Layer) -> bool:
    return entry == layer.kind or (layer.name != "" and fnmatchcase(layer.name, entry))


def _no_such_layer(entry: str, layers: Sequence[Layer]) -> str:
    names = [layer.name for layer in layers if layer.name]
    kinds = sorted({layer.kind for layer in layers})
    close = nearest(entry, [*names, *kinds], 3)
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"keep={kinds[-1:]!r}"
    return (
        f"keep={[entry]!r} matches no layer of this model. It has {shown or 'no named layers'}; "
        f"classes {', '.join(kinds)}.\nHint: {hint}"
    )
