"""Optimizers by name, with the same defaults and the same formulas everywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ampbridge.adapters.arguments import backend_of_model
from ampbridge.adapters.backend import Model, Optimizer
from ampbridge.errors import ArgumentError, listed
from ampbridge.errors.flags import checked_flag
from ampbridge.errors.foreign_names import told_of
from ampbridge.neutral import checks
from ampbridge.neutral.native import native_of_backend

BETAS, EPS = (0.9, 0.999), 1e-8

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "adamw": {"betas": BETAS, "eps": EPS, "weight_decay": 1e-2},
    "adam": {"betas": BETAS, "eps": EPS},
    "sgd": {"momentum": 0.9, "nesterov": False, "weight_decay": 0.0},
}
"""The settings of each optimizer besides its learning rate. These are torch's, but for the momentum."""


@told_of("neutral.optimizer")
def optimizer(
    name: str,
    model: Model,
    *,
    lr: float,
    betas: tuple[float, float] | None = None,
    eps: float | None = None,
    weight_decay: float | None = None,
    momentum: float | None = None,
    nesterov: bool | None = None,
) -> Optimizer:
    """A native optimizer of the model's trainable parameters.

    Every framework follows torch's formulas: weights agree within the rounding of float32.

    Args:
        name: "adamw", "adam" or "sgd".
        model: a native model of any framework. A Keras model has to be built.
        lr: the learning rate, from 0.
        betas, eps: of "adamw" and "adam"; (0.9, 0.999) and 1e-8 by default. ``eps`` is added to the root
            of the bias-corrected average of the squares.
        weight_decay: of "adamw" (0.01 by default), decoupled: a step first multiplies the weights by
            ``1 - lr * weight_decay``. Of "sgd" (0 by default) it is added to the gradient, times the
            weights.
        momentum, nesterov: of "sgd"; 0.9 and False by default. The buffer is ``momentum * buffer +
            gradient``, and the rate multiplies it when it is applied, so that a new rate acts at once.

    Raises:
        ArgumentError: for an unknown name, a setting that this optimizer does not have, or a value that
            is not allowed.
        ArgumentTypeError: for what is not a model.
    """
    name = checks.one_of("name", name, tuple(DEFAULTS))
    backend = backend_of_model(model)
    passed = {
        "betas": betas,
        "eps": eps,
        "weight_decay": weight_decay,
        "momentum": momentum,
        "nesterov": nesterov,
    }
    settings = _settings(name, {key: value for key, value in passed.items() if value is not None})
    settings["lr"] = checks.number("lr", lr, 0.001)
    native = native_of_backend(backend)
    if not backend.parameters(model):
        msg = f"{type(model).__name__} has no trainable parameters, or has not been built.\n"
        raise ArgumentError(
            msg + "Hint: model(x), which makes a Keras model's weights, comes first"
        )
    return native.optimizer(name, model, settings)


def _settings(name: str, passed: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of an optimizer, checked."""
    own = DEFAULTS[name]
    for key in passed:
        if key not in own:
            others = [other for other, settings in DEFAULTS.items() if key in settings]
            msg = f"{name!r} has no {key}; allowed are {listed(['lr', *own])}.\n"
            raise ArgumentError(
                msg + f"Hint: neutral.optimizer({others[0]!r}, model, lr=lr, {key}=...)"
            )
    chosen = {**own, **passed}
    checked = {key: _CHECKS[key](value) for key, value in chosen.items()}
    if checked.get("nesterov") and not checked["momentum"]:
        msg = "nesterov=True looks ahead along the momentum, and momentum is 0.\n"
        raise ArgumentError(msg + "Hint: momentum=0.9, nesterov=True")
    return checked


def _betas(value: Any) -> tuple[float, float]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        msg = f"Passed betas={value!r:.80}; allowed are two numbers in [0, 1).\n"
        raise ArgumentError(msg + f"Hint: betas={BETAS}")
    first, second = (checks.number("betas", each, 0.9, below=1) for each in value)
    return first, second


_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "betas": _betas,
    "eps": lambda value: checks.number("eps", value, EPS),
    "weight_decay": lambda value: checks.number("weight_decay", value, 0.01),
    "momentum": lambda value: checks.number("momentum", value, 0.9),
    "nesterov": lambda value: checked_flag("nesterov", value),
}
