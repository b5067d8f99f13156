"""Which op of one recording is which of another's: by names, sizes, layers and order.

The pairing is the longest common subsequence of the ops that compute. Two ops fit if they have the
same canonical name, outputs of the same size, and layers whose weights are paired; of several
longest ones it is that with the most ops of the same magnitude.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import isnan

from ampbridge.checkpoints.weights import Match
from ampbridge_lens.closeness import root_mean_square
from ampbridge_lens.recording import RecordedOp
from ampbridge_lens.subject import in_layer

MOVING = frozenset(
    {
        "broadcast_to", "cast", "concat", "flatten", "flip", "identity", "reshape", "roll", "slice",
        "split", "squeeze", "stack", "tile", "transpose", "unbind", "unsqueeze",
    }
)  # fmt: skip
"""Ops that compute nothing. Each framework has different ones, or reports none of them."""

ALIKE = 1e-3
"""Two ops are of the same magnitude if their outputs' root mean squares differ by no more."""


def computes(op: RecordedOp) -> bool:
    """Whether an op is one that is paired."""
    return op.op not in MOVING and bool(op.outputs)


def paired_ops(
    a: Sequence[RecordedOp], b: Sequence[RecordedOp], weights: Sequence[Match]
) -> list[tuple[int, int]]:
    """The places of paired ops, ascending. In ``weights``, those of ``a`` are the sources."""
    layers = {_layer(match.source.name): _layer(match.target.name) for match in weights}
    paired_layers = set(layers.values())
    computing_a = [(i, op, _magnitude(op)) for i, op in enumerate(a) if computes(op)]
    computing_b = [(j, op, _magnitude(op)) for j, op in enumerate(b) if computes(op)]

    def score(i: int, j: int) -> int:
        """How well two ops fit: 0 for not at all, 2 with outputs of one magnitude, else 1."""
        (_, one, size), (_, other, other_size) = computing_a[i], computing_b[j]
        if one.op != other.op or one.outputs[0].low.size != other.outputs[0].low.size:
            return 0
        both_paired = one.layer in layers and other.layer in paired_layers
        if both_paired and layers[one.layer] != other.layer:
            return 0
        is_alike = abs(size - other_size) <= ALIKE * max(size, other_size)
        return 2 if is_alike or isnan(size) else 1

    # Usually the ops are the same ones, or begin so; that is seen without a search.
    n, m = len(computing_a), len(computing_b)
    same = n if n == m and all(score(k, k) for k in range(n)) else 0
    while same < min(n, m) and score(same, same) == 2:
        same += 1
    rest = _longest(lambda i, j: score(same + i, same + j), n - same, m - same)
    pairs = [*((k, k) for k in range(same)), *((same + i, same + j) for i, j in rest)]
    return [(computing_a[i][0], computing_b[j][0]) for i, j in pairs]


def unpaired_ops(
    a: Sequence[RecordedOp], b: Sequence[RecordedOp], pairs: Sequence[tuple[int, int]]
) -> Iterator[str]:
    """What has no partner in ``paired_ops``, as "a: einsum, attention"."""
    for name, ops, places in (("a", a, {i for i, _ in pairs}), ("b", b, {j for _, j in pairs})):
        for place, op in enumerate(ops):
            if place not in places and computes(op):
                yield f"{name}: {in_layer(op.op, op.layer)}"


def _layer(weight: str) -> str:
    return weight.rpartition(".")[0]


def _magnitude(op: RecordedOp) -> float:
    output = op.outputs[0]
    return root_mean_square(output.low if output.full is None else output.full)


def _longest(score: Callable[[int, int], int], n: int, m: int) -> list[tuple[int, int]]:
    """The pairing of ``n`` ops with ``m`` that has the highest sum of scores, ascending."""
    best = [[0] * (m + 1) for _ in range(n + 1)]
    for i in reversed(range(n)):
        for j in reversed(range(m)):
            fit = score(i, j)
            taken = best[i + 1][j + 1] + fit if fit else 0
            best[i][j] = max(taken, best[i + 1][j], best[i][j + 1])
    pairs, i, j = [], 0, 0
    while i < n and j < m:
        fit = score(i, j)
        if fit and best[i][j] == best[i + 1][j + 1] + fit:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs
