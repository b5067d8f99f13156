"""``torch.compile`` of the loss function.

The region stays outside, as torch advises: Dynamo guards on autocast and on the lists that it met,
so a call under another policy compiles anew instead of reusing a graph.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from ampbridge.backend import LossFn, Program
from ampbridge.errors import AmpBridgeWarning
from ampbridge_torch import _private

_in_our_hands: ContextVar[bool] = ContextVar("ampbridge_torch compiles", default=False)


def compile_step(build: Callable[[LossFn], Program], loss_fn: LossFn) -> Program:
    """The step with its loss function compiled by Inductor; backward pass and update are eager."""
    compiled = torch.compile(loss_fn, backend=_inductor)

    def compiled_loss(*args: Any) -> Any:
        token = _in_our_hands.set(True)
        try:
            return compiled(*args)
        finally:
            _in_our_hands.reset(token)

    return build(compiled_loss)


def _inductor(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
    """Inductor, with the backward pass outside of autocast as it is in eager code."""
    with _private.backward_autocast_off():
        compiled: Callable[..., Any] = _private.graph_compiler("inductor")(graph, inputs)
        return compiled


@torch.compiler.assume_constant_result
def check_backward_pass() -> bool:
    """Warn of a function that a user compiles under lists that keep GEMMs in float32.

    Called by Dynamo while it traces. Its setting is the user's own, and is read after the tracing.
    """
    harmless = _in_our_hands.get() or not _private.backward_autocast_is_on()
    if not harmless:
        warnings.warn(
            "torch.compile computes the backward pass of this function inside of autocast: denied "
            "ops get low-precision gradients.\n"
            "Hint: torch._functorch.config.backward_pass_autocast = 'off'",
            AmpBridgeWarning,
            stacklevel=2,
        )
    return harmless
