"""Gradients of embeddings that hold the rows they have, and nothing else (SelectedRows)."""

from __future__ import annotations

from typing import Any

import paddle

from ampbridge_paddle._private import method

Tensor = Any


def dense_values(grad: Tensor) -> Tensor:
    """The values of a gradient, in its own memory; of a sparse one, those of its rows."""
    if not grad.is_selected_rows():
        return grad
    return method("Tensor", grad, "_get_tensor_from_selected_rows")()


def merged(grad: Tensor | None) -> Tensor | None:
    """A copy of a sparse ``grad`` that has each row once; another one as it is."""
    if grad is None or not grad.is_selected_rows():
        return grad
    return paddle.nn.clip.merge_selected_rows(grad)
