"""Which op of one recording is which of another's: by names, sizes, layers and order.

The pairing is the longest common subsequence of the ops that compute. Two ops fit if they have the
same canonical name, outputs of the same size, and layers whose weights are paired; of several
longest ones it is that with the most ops of the same magnitude.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ampbridge.checkpoints.weights import Match
from ampbridge_lens.closeness import root_mean_square
from ampbridge_lens.recording import RecordedOp

MOVING = frozenset(
    {
        "broadcast_to", "cast", "concat", "flatten", "flip", "identity", "reshape", "roll", "slice",
        "split", "squeeze", "stack", "tile", "transpose", "unbind", "unsqueeze",
    }
)  # fmt: skip
"""They compute nothing, and each framework has others of them, or reports none."""

ALIKE = 1e-3
"""Two ops are of the same magnitude if their outputs' root mean squares differ by no more."""


def computes(op: RecordedOp) -> bool:
    """Whether an op is one that is paired."""
    return op.op not in MOVING and bool(op.outputs)


def paired_ops(
    a: Sequence[RecordedOp], b: Sequence[RecordedOp], weights: Sequence[Match]
) -> list[tuple[int, int]]:
    """The places of paired ops, ascending; ``weights`` pairs those of ``a``, its sources, and ``b``."""
    computing_a = [i for i, op in enumerate(a) if computes(op)]
    computing_b = [i for i, op in enumerate(b) if computes(op)]
    scores = _Scores([a[i] for i in computing_a], [b[i] for i in computing_b], weights)
    return [(computing_a[i], computing_b[j]) for i, j in _longest(scores)]


def layers_of(weights: Sequence[Match]) -> dict[str, str]:
    """The layers of paired weights."""
    return {_layer(match.source.name): _layer(match.target.name) for match in weights}


def _layer(weight: str) -> str:
    return weight.rpartition(".")[0]


class _Scores:
    """How well ops fit: 0 for not at all, 2 with outputs of one magnitude, else 1."""

    def __init__(
        self, a: Sequence[RecordedOp], b: Sequence[RecordedOp], weights: Sequence[Match]
    ) -> None:
        self.a, self.b = a, b
        self._layers = layers_of(weights)
        self._paired_layers = set(self._layers.values())
        self._magnitudes = [*map(_magnitude, a)], [*map(_magnitude, b)]

    def __call__(self, i: int, j: int) -> int:
        if not self._fit(self.a[i], self.b[j]):
            return 0
        one, other = self._magnitudes[0][i], self._magnitudes[1][j]
        return 2 if abs(one - other) <= ALIKE * max(one, other) or one != one != other else 1

    def _fit(self, a: RecordedOp, b: RecordedOp) -> bool:
        if a.op != b.op or a.outputs[0].low.size != b.outputs[0].low.size:
            return False
        expected: Mapping[str, str] = self._layers
        if a.layer in expected and b.layer in self._paired_layers:
            return expected[a.layer] == b.layer
        return True


def _magnitude(op: RecordedOp) -> float:
    output = op.outputs[0]
    return root_mean_square(output.low if output.full is None else output.full)


def _longest(scores: _Scores) -> list[tuple[int, int]]:
    """The pairing with the highest sum of scores, ascending.

    Usually the ops are the same ones, or begin so; that is seen without a search.
    """
    n, m, same = len(scores.a), len(scores.b), 0
    if n == m and all(scores(k, k) for k in range(n)):
        return [(k, k) for k in range(n)]
    while same < min(n, m) and scores(same, same) == 2:
        same += 1
    n, m = n - same, m - same
    best = [[0] * (m + 1) for _ in range(n + 1)]
    for i in reversed(range(n)):
        for j in reversed(range(m)):
            fit = scores(same + i, same + j)
            taken = best[i + 1][j + 1] + fit if fit else 0
            best[i][j] = max(taken, best[i + 1][j], best[i][j + 1])
    pairs, i, j = [(k, k) for k in range(same)], 0, 0
    while i < n and j < m:
        fit = scores(same + i, same + j)
        if fit and best[i][j] == best[i + 1][j + 1] + fit:
            pairs.append((same + i, same + j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs
