"""Gradients in float64, which others are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import ampbridge as amp
from ampbridge_numpy import nn


def float64_gradients(
    loss_fn: Callable[..., Any], model: nn.Module, batch: Sequence[Any]
) -> dict[str, np.ndarray]:
    """The gradients of ``loss_fn(model, *batch)`` by the parameters' names, all of it in float64.

    Changes the model's parameters to float64.
    """
    for _, module in model.named_modules():
        for name, parameter in list(module._own_parameters().items()):
            setattr(module, name, nn.Parameter(parameter.astype(np.float64)))
    wide = [in_float64(each) for each in batch]
    _, gradients = amp.value_and_grad(loss_fn, model, *wide, policy="O0")
    return dict(zip(amp.backend(model).parameter_names(model), gradients, strict=True))


def in_float64(x: Any) -> Any:
    """A float32 array as float64; anything else as it is."""
    is_float32 = isinstance(x, np.ndarray) and x.dtype == np.float32
    return x.astype(np.float64) if is_float32 else x
