"""Gradients of embeddings that hold the rows they have, and nothing else (SelectedRows)."""

from __future__ import annotations

from typing import Any

import paddle

from ampbridge_paddle._private import method

Tensor = Any


def dense_values(grad: Tensor) -> Tensor:
    """The values of a gradient, sharing memory: of a sparse one, the rows that it has."""
    if not grad.is_selected_rows():
        return grad
    return method("Tensor", grad, "_get_tensor_from_selected_rows")()


def merged(grad: Tensor | None) -> Tensor | None:
    """``grad`` with each row once: in memory of its own if it is sparse, else as it is."""
    if grad is None or not grad.is_selected_rows():
        return grad
    return paddle.nn.clip.merge_selected_rows(grad)
