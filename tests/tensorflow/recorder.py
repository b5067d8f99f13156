"""In which dtype ops really ran, seen from below the adapter."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe

Seen = list[tuple[str, str]]

GENUINE = pywrap_tfe.TFE_Py_FastPathExecute

# They move values between dtypes or name them.
MOVES = {"Cast", "Const", "Identity", "Placeholder", "NoOp", "ReadVariableOp"}


def eager(function: Callable[..., Any], *args: Any) -> tuple[Any, Seen]:
    """The result, and (op, dtype of its first float input) for each op that reached the C API."""
    with below_the_adapter() as seen:
        return function(*args), seen


@contextmanager
def below_the_adapter() -> Iterator[Seen]:
    """Stand in for the C function that runs eager ops, under anything that replaces it later."""
    if pywrap_tfe.TFE_Py_FastPathExecute is not GENUINE:
        gc.collect()  # decorated models of earlier tests, which keep it replaced as long as they live
    original = pywrap_tfe.TFE_Py_FastPathExecute
    seen: Seen = []

    def execute(ctx: Any, op: str, name: Any, *args: Any) -> Any:
        flat = tf.nest.flatten(list(args))
        dtypes = [tf.as_dtype(a.dtype) for a in flat if tf.is_tensor(a)]
        floats = [dtype.name for dtype in dtypes if dtype.is_floating]
        if floats and op not in MOVES:
            seen.append((op, floats[0]))
        return original(ctx, op, name, *args)

    pywrap_tfe.TFE_Py_FastPathExecute = execute
    try:
        yield seen
    finally:
        pywrap_tfe.TFE_Py_FastPathExecute = original


def traced(function: Callable[..., Any], *args: Any) -> tuple[Any, Seen]:
    """The same for the nodes of the graph that ``tf.function`` makes."""
    concrete = tf.function(function, autograph=False).get_concrete_function(*args)
    return concrete(*args), in_graph(concrete)


def in_graph(concrete: Any) -> Seen:
    """(op, dtype) for each node of a traced function that computes on floats."""
    definition = concrete.graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    return [
        (node.op, tf.as_dtype(node.attr["T"].type).name)
        for node in nodes
        if node.attr["T"].type
        and tf.as_dtype(node.attr["T"].type).is_floating
        and node.op not in MOVES
    ]


RECORDERS = {"eager": eager, "tf.function": traced}
