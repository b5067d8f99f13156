"""``torch.compile`` of the loss function.

The region stays outside, as torch advises: Dynamo guards on autocast and on the lists that it met,
so a call under another policy compiles anew instead of reusing a graph.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ampbridge.adapters.backend import LossFn, Program
from ampbridge_torch import _private
from ampbridge_torch.autocast.compiler_settings import in_our_hands
from ampbridge_torch.autocast.mode import active_mode


def compile_step(build: Callable[[LossFn], Program], loss_fn: LossFn) -> Program:
    """The step with its loss function compiled by Inductor; backward pass and update are eager."""
    natively = torch.compile(loss_fn, backend=_inductor)
    simulated = torch.compile(loss_fn, backend=partial(_inductor, keeps_roundings=True))

    def compiled_loss(*args: Any, **kwargs: Any) -> Any:
        mode = active_mode()
        compiled = simulated if mode is not None and mode.rules.simulates else natively
        with in_our_hands.during(True):
            return compiled(*args, **kwargs)

    return build(compiled_loss)


def _inductor(
    graph: torch.fx.GraphModule, inputs: list[Tensor], keeps_roundings: bool = False
) -> Callable[..., Any]:
    """Inductor, with the backward pass outside of autocast as it is in eager code."""
    with _private.backward_autocast_off():
        return _private.inductor(graph, inputs, keeps_roundings)
