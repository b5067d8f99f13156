"""Activation checkpoints whose recomputation follows the lists.

Torch brings ``torch.autocast`` back when it recomputes, but no function mode: its own
``checkpoint`` under lists raises a CheckpointError, and its reentrant variant goes unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.checkpoint import checkpoint as torch_checkpoint

from ampbridge_torch.casting import active_mode, listed


def checkpoint(
    function: Callable[..., Any], *args: Any, use_reentrant: bool = False, **kwargs: Any
) -> Any:
    """``torch.utils.checkpoint.checkpoint`` with the lists of this call in force at each run."""
    mode = active_mode()
    if mode is None:
        return torch_checkpoint(function, *args, use_reentrant=use_reentrant, **kwargs)
    rules = mode.rules

    def under_lists(*inputs: Any, **options: Any) -> Any:
        with listed(rules, active_mode()):
            return function(*inputs, **options)

    return torch_checkpoint(under_lists, *args, use_reentrant=use_reentrant, **kwargs)
