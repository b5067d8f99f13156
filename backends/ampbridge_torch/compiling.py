"""``torch.compile`` of the loss function.

The region stays outside, as torch advises: Dynamo guards on autocast and on the lists that it met,
so a call under another policy compiles anew instead of reusing a graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ampbridge.backend import LossFn, Program
from ampbridge_torch import _private


def compile_step(build: Callable[[LossFn], Program], loss_fn: LossFn) -> Program:
    """The step with its loss function compiled by Inductor; backward pass and update are eager."""
    return build(torch.compile(loss_fn, backend=inductor))


def inductor(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
    """Inductor, with the backward pass outside of autocast as it is in eager code."""
    with _private.backward_autocast_off():
        compiled: Callable[..., Any] = _private.graph_compiler("inductor")(graph, inputs)
        return compiled
