"""Warnings point to the user's line."""

from __future__ import annotations

import autograd.numpy as anp
import numpy as np
import pytest
from user_lines import OF_THE_CORE, check_that_the_last_line_is_warned_of

from ampbridge_numpy import nn, optim

X = np.ones((3, 2), np.float32)
NAMES = {
    "model": lambda: nn.Linear(2, 2),
    "optimizer": lambda model: optim.SGD(model.parameters(), 0.1),
    "loss_fn": lambda model, x: anp.mean(model(x)),
    "x": X,
    "inf": X * np.inf,
}


@pytest.mark.parametrize("kind", [kind for kind in OF_THE_CORE if "in 16 bits" not in kind])
def test_of_the_core(kind: str) -> None:
    """An ``nn.Parameter`` is float32, whatever it is made of."""
    check_that_the_last_line_is_warned_of(OF_THE_CORE[kind], NAMES)
