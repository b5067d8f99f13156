"""Compiled steps of torch without a C++ compiler, which takes minutes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def aot_eager(graph: Any, inputs: list[Any], keeps_roundings: bool) -> Callable[..., Any]:
    """In place of ``_private.inductor``: graphs are traced, guarded and differentiated, and run as they are.

    Inductor's own code is the subject of torch/test_compile.py, and of the nightly profile everywhere.
    """
    import torch

    compiled: Callable[..., Any] = torch._dynamo.lookup_backend("aot_eager")(graph, inputs)
    return compiled
