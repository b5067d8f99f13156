"""What the core tells tracers, which rewrite or inline the Python code that they meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def called_as_it_is(function: Function) -> Function:
    """Mark ``function`` for TensorFlow's AutoGraph: call it, do not convert its source.

    It holds no control flow on tensors. The attribute is the one by which AutoGraph knows its own
    results (``autograph_info__``, tensorflow 2.16 to 2.21); elsewhere it means nothing.
    """
    function.autograph_info__ = {}  # type: ignore[attr-defined]
    return function


def constant_result(function: Function) -> Function:
    """Mark ``function`` for torch.compile: call it while tracing and take its result as a constant.

    The attribute is what ``torch.compiler.assume_constant_result`` sets, torch 2.6 to 2.13.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
