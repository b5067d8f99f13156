"""Write docs/ops.md from the op table: every op, its rule in each list set, its names in each framework.

python scripts/write_ops.py            writes it
python scripts/write_ops.py --check    exits with 1 if it is not what stands there
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from ampbridge.checkpoints import atomic_files
from ampbridge.policies import op_table
from ampbridge.policies.op_table import Op
from ampbridge.policies.policy import LOW_DTYPES
from ampbridge.reports.lists import WITH_LISTS, Lists, names_in

DOCUMENT = Path(__file__).parents[1] / "docs" / "ops.md"
LEVELS = ("O1", "O2")

# Framework, as ampbridge.reports.lists has it -> what the page calls it.
FRAMEWORKS = {
    "torch": "PyTorch",
    "tf": "TensorFlow, Keras",
    "paddle": "Paddle",
    "numpy": "NumPy",
    "jax": "JAX",
}

FAMILIES = {
    "matmul": "Matrix products",
    "conv": "Convolutions",
    "attention": "Attention",
    "rnn": "Recurrent layers",
    "norm": "Normalization",
    "softmax": "Softmax",
    "activation": "Activations",
    "loss": "Losses",
    "arithmetic": "Arithmetic",
    "pointwise": "Element by element",
    "comparison": "Comparisons",
    "reduction": "Reductions",
    "scan": "Cumulative sums and products",
    "pooling": "Pooling",
    "resize": "Resizing",
    "index": "Indexing and embedding",
    "shape": "Shapes",
    "random": "Random numbers",
    "quant": "Quantization",
    "linalg": "Linear algebra",
    "fft": "Fourier transforms",
}

INTRODUCTION = """\
---
hide: [toc]
---

# Ops and lists

<!-- written by scripts/write_ops.py -->

The {count} ops that ampbridge knows, the rule that each has in each list set, and what the frameworks call
it. The names stand in `allow` and `deny` of a [`Policy`](reference/policies.md#ampbridge.Policy): the first
column as it is, a framework's own with its prefix (`"torch:torch.softmax"`, `"tf:MatMul"`,
`"paddle:reduce_sum"`; Paddle's `scale` is an op of its own). Paddle's names are the entries of
Paddle's own lists first, then its functions.

| rule | the op runs in |
|---|---|
| allow | 16 bits |
| deny | `float32` |
| promote | the widest type that arrives; what follows its inputs counts as that |
| (follow), (promote), (full) | not listed: what arrives, the widest of what arrives, `float32` |

Where levels or types differ, all are given. On the command line:

    ampbridge lists why softmax                                 # its names, its rules, and the reason
    ampbridge lists show paddle:O1:float16                      # a whole list set
    ampbridge lists diff torch:cuda paddle:O1 tensorflow safe   # the ops on which they differ
    ampbridge lists translate --from paddle --to tf reduce_sum matmul_v2

| list set | taken from |
|---|---|
{sources}

<div class="table-filter" data-placeholder="Filter: softmax, MatMul, deny, ..."></div>
"""


def document() -> str:
    """The whole page."""
    sources = "\n".join(f"| {name} | {op_table.source(name)} |" for name in WITH_LISTS)
    parts = [INTRODUCTION.format(count=len(op_table.ops()), sources=sources)]
    families = groupby(
        sorted(op_table.ops().values(), key=lambda op: list(FAMILIES).index(op.family)),
        key=lambda op: op.family,
    )
    for family, ops in families:
        parts.append(f"## {FAMILIES[family]}\n\n" + "\n".join(table(ops)) + "\n")
    return "\n".join(parts)


def table(ops: Iterator[Op]) -> Iterator[str]:
    """A row for each op."""
    header = ["op", *WITH_LISTS, "what it is called, and why its rule in *safe*"]
    yield f"| {' | '.join(header)} |"
    yield "|---" * len(header) + "|"
    for op in ops:
        rules = [rule(list_set, op) for list_set in WITH_LISTS]
        yield f"| {' | '.join([code(op.name), *rules, '<br>'.join(about(op))])} |"


def about(op: Op) -> Iterator[str]:
    """A line for each framework that has the op, and one for the reason."""
    for framework, name in FRAMEWORKS.items():
        if names := names_in(framework, op):
            yield f"{name}: {', '.join(map(code, names))}"
    yield f"*safe*: {op.why.replace('|', '/')}"


def rule(list_set: str, op: Op) -> str:
    """One word where levels and dtypes agree, else each with what it says."""
    found = {
        (level, dtype): Lists(list_set, level, dtype).rule(op.name)
        for level in LEVELS
        for dtype in LOW_DTYPES
    }
    if len(set(found.values())) == 1:
        return found["O1", "float16"]
    by_level = {level: {found[level, dtype] for dtype in LOW_DTYPES} for level in LEVELS}
    if all(len(rules) == 1 for rules in by_level.values()):
        return ", ".join(f"{level}: {rules.pop()}" for level, rules in by_level.items())
    by_dtype = {dtype: {found[level, dtype] for level in LEVELS} for dtype in LOW_DTYPES}
    if all(len(rules) == 1 for rules in by_dtype.values()):
        return ", ".join(f"{dtype}: {rules.pop()}" for dtype, rules in by_dtype.items())
    return ", ".join(f"{level} {dtype}: {rule}" for (level, dtype), rule in found.items())


def code(name: str) -> str:
    return f"`{name}`"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    options = parser.parse_args()
    wanted = document()
    if options.check:
        return int(not DOCUMENT.exists() or wanted != DOCUMENT.read_text())
    atomic_files.write(DOCUMENT, wanted.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
