"""Which layers make the difference of two sides' outputs: the part that each adds to it.

    a pass of b, whose outputs get the gradient g
    part of an op = <its outputs' gradient, a - b> - <the gradient that it adds to its inputs, a - b>

The difference of an op's inputs, brought through its derivative, is no part of its own; rounding in it,
casts to it and its weights are. As long as the sides are near, the parts add up to <g, a - b> of the
outputs, because what leaves one op arrives at another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import reduce
from math import log2
from operator import add
from typing import Any, NamedTuple

import numpy as np

from ampbridge.adapters.backend import Backend, Model
from ampbridge.adapters.nested import named_leaves
from ampbridge.checkpoints.weights import Match
from ampbridge.errors import StateError
from ampbridge.neutral import mse_loss
from ampbridge.policies.policy import Policy
from ampbridge_lens.align import MOST
from ampbridge_lens.closeness import (
    AS_IT_IS,
    NumpyArray,
    arranged,
    arrangement_of,
    largest,
    rounded,
)
from ampbridge_lens.op_arrays import ArrayObserver, OpArray
from ampbridge_lens.pairing import paired_ops, unpaired_ops
from ampbridge_lens.recording import RecordedOp, Values, ops_of
from ampbridge_lens.subject import Subject, ended


class LayerPart(NamedTuple):
    """What the ops of one layer of ``a`` add to the squared difference, as a fraction of it.

    Attributes:
        part: negative if it cancels what others add.
        ops: with the dtypes in which ``a`` and ``b`` ran them.
    """

    layer: str
    part: float
    ops: tuple[str, ...]


def floating_outputs(outputs: Any) -> dict[str, Any]:
    """The floating-point arrays of what a function returned, by their keys."""
    found = named_leaves(outputs).items()
    return {name: x for name, x in found if "float" in str(getattr(x, "dtype", ""))}


class AllArrays(ArrayObserver):
    """An observer that keeps every array of a pass; inputs as they were handed to their op."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend, self._keep)
        self._arrays: dict[Any, Values] = {}

    def _keep(self, seen: OpArray) -> None:
        values = seen.on_host().copy()
        self._arrays[seen.key] = Values(seen.operand.dtype, values, None, 0.0, 0.0)

    def ops(self) -> tuple[RecordedOp, ...]:
        return ops_of(tuple(self.calls.values()), self._arrays)[0]


def layer_parts(
    ops: Sequence[RecordedOp],
    b: Subject,
    policy: Policy,
    batch: Sequence[Any],
    weights: Sequence[Match],
    outputs: tuple[Mapping[str, NumpyArray], Mapping[str, NumpyArray]],
    gradients: Mapping[str, NumpyArray],
) -> tuple[tuple[LayerPart, ...], Sequence[str]]:
    """The parts of all layers, the largest first, and the ops without a partner.

    Args:
        ops: those of a pass of ``a``.
        outputs: what ``a`` and ``b`` returned, by names.
        gradients: ``g`` of some of them.
    """
    one, other = outputs
    total = sum(_product(g, one[name], other[name]) for name, g in gradients.items())
    if not total:
        return (), ()
    # The gradient of the mean of (x - target)^2 is a multiple of g that fits into float16.
    size = max(1.0, *(largest(other[name]) for name in gradients))
    step = size / max(largest(g) * g.size for g in gradients.values())
    targets = {name: other[name] - step * g.size * g for name, g in gradients.items()}
    scale = 2.0 ** round(log2(max(g.size for g in gradients.values()) / size))

    def loss_fn(model: Model, *inputs: Any) -> Any:
        found = floating_outputs(b.call(model, *inputs))
        ends.append(len(seen.calls))  # what follows is the lens's own
        wide = {name: b.backend.cast(found[name], "float32") for name in targets}
        return reduce(add, (mse_loss(wide[name], target) for name, target in targets.items()))

    seen, ends = AllArrays(b.backend), list[int]()
    raised = Subject(loss_fn, b.model).run(batch, policy, scale, seen).raised
    if raised:
        raise StateError(ended(raised))
    theirs, values = seen.ops(), b.backend.read_weights(b.model).values()
    of_weights = {
        _content(rounded(v, dtype)) for v in values for dtype in ("float32", policy.dtype)
    }
    parts: dict[str, float] = defaultdict(float)
    names: dict[str, dict[str, None]] = defaultdict(dict)
    pairs = paired_ops(ops, theirs, weights)
    for i, j in pairs:
        part = _part(ops[i], theirs[j], of_weights)
        if np.isfinite(part):
            dtypes = dict.fromkeys((ops[i].dtype, theirs[j].dtype))
            parts[ops[i].layer] += part / (2 * step * scale * total)
            names[ops[i].layer][f"{ops[i].op} ({', '.join(dtypes)})"] = None
    found = [LayerPart(layer, part, tuple(names[layer])) for layer, part in parts.items()]
    largest_first = tuple(sorted(found, key=lambda each: -abs(each.part)))
    return largest_first, [*unpaired_ops(ops, theirs[: ends[-1]], pairs)]


def _part(a: RecordedOp, b: RecordedOp, of_weights: set[Any]) -> float:
    """What one op adds; NaN if its arrays cannot be compared."""
    made = sum(
        _product(g.low, a.outputs[p].low, b.outputs[p].low)
        for p, g in b.arrived.items()
        if p < len(a.outputs)
    )
    taken = sum(
        _product(g.low, a.inputs[p].low, b.inputs[p].low)
        for p, g in b.left.items()
        if p < len(a.inputs) and _content(b.inputs[p].low) not in of_weights
    )
    return made - taken


def _product(gradient: NumpyArray, a: NumpyArray, b: NumpyArray) -> float:
    """<gradient, a - b>; NaN if the arrays have shapes that no order of the axes explains."""
    how = AS_IT_IS if a.shape == b.shape else arrangement_of(a, b, MOST)
    turned = None if how is None else arranged(a, b, how)
    if turned is None:
        return float("nan")
    counts = (gradient != 0) & (turned != b)  # where -inf masks both
    apart = turned[counts].astype(np.float64) - b[counts]
    return float(np.dot(gradient[counts].astype(np.float64), apart))


def _content(values: NumpyArray) -> tuple[int, int]:
    """What an array has in common with itself in other shapes, and with its axes in another order."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return values.size, int(bits.sum(dtype=np.uint64))
