"""Weights, slots and settings, as arrays by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ampbridge.backend import OptimizerState
from ampbridge.errors import UnsupportedError
from ampbridge.weights import Weight
from ampbridge_torch.gradients import parameters


def parameter_names(model: Any) -> list[str]:
    """See ``Backend.parameter_names``."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [names[id(parameter)] for parameter in parameters(model)]


def weights(model: Any) -> list[Weight]:
    """See ``Backend.weights``."""
    raise UnsupportedError("not yet")


def read_weights(model: Any) -> dict[str, np.ndarray]:
    """See ``Backend.read_weights``."""
    raise UnsupportedError("not yet")


def write_weights(model: Any, values: Mapping[str, np.ndarray]) -> None:
    """See ``Backend.write_weights``."""
    raise UnsupportedError("not yet")


def read_optimizer(optimizer: Any, model: Any) -> OptimizerState:
    """See ``Backend.read_optimizer``."""
    raise UnsupportedError("not yet")


def write_optimizer(optimizer: Any, model: Any, state: OptimizerState) -> None:
    """See ``Backend.write_optimizer``."""
    raise UnsupportedError("not yet")
