"""Trains the handwritten digits in float32 and under a policy: ``ampbridge demo``.

The recipe is ``digits``. Its loss scale starts far too high, at 2^24, to give the scaler something to
do: the first steps overflow float16 and are skipped, the scale is halved until the gradients fit, and
after every run of good steps it is doubled again, sometimes once too often.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TextIO

import numpy as np

from ampbridge import workloads
from ampbridge.adapters import registry
from ampbridge.errors import AmpBridgeError
from ampbridge.policies.policy import Policy
from ampbridge.reports.printing import Table, TabularReport
from ampbridge_compare import Comparison, Run, compare
from ampbridge_compare.comparison import last_scale
from ampbridge_compare.runs import Steps

STEPS = 600
LAST_STEPS = 50  # the loss in the table is the mean over these

BLOCKS, ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "_.-~=+*#"
COLUMNS = 60
"""Of the loss scale's history."""


@dataclass(frozen=True)
class Demo(TabularReport):
    """Float32 on NumPy beside a policy on one backend, from the same weights on the same batches."""

    comparison: Comparison

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain JSON values."""
        return self.comparison.to_dict()

    def table(self) -> Table:
        """As it is printed where there are block characters."""
        return self._table(BLOCKS)

    def print(self, file: TextIO) -> None:
        """Write it to ``file``, in characters that its encoding has."""
        blocks = BLOCKS if (file.encoding or "").lower().startswith("utf") else ASCII_BLOCKS
        self._table(blocks).print(file)

    def _table(self, blocks: str) -> Table:
        (mixed,) = self.comparison.runs
        both = (self.comparison.reference, mixed)
        rows = (
            (f"loss, last {LAST_STEPS} steps", *(f"{_last_loss(each):.4f}" for each in both)),
            ("test accuracy", *(f"{each.accuracy:.1%}" for each in both)),
            ("skipped steps", *(f"{len(each.steps.skipped)} of {STEPS}" for each in both)),
            ("last scale", *(last_scale(each.steps) for each in both)),
        )
        history = _history(mixed.steps, blocks) if set(mixed.steps.scale) != {1.0} else []
        others = [name for name in registry.backend_names() if name != mixed.backend]
        return Table(
            "Handwritten digits, trained twice from the same weights",
            ("", both[0].label, f"{self.comparison.policy} ({mixed.label})"),
            rows,
            (
                "",
                *history,
                f"On another framework: ampbridge demo --backend {'|'.join(others)}",
                "All of them beside each other, on a page with figures: ampbridge compare digits",
            ),
        )


def _last_loss(run: Run) -> float:
    return float(np.mean(run.steps.loss[-LAST_STEPS:]))


def _history(steps: Steps, blocks: str) -> list[str]:
    """The scale over the steps as a line of blocks, and under it how many steps were skipped."""
    exponents = np.log2(steps.scale)
    low, high = exponents.min(), exponents.max()
    heights = np.round((exponents - low) / max(high - low, 1.0) * (len(blocks) - 1)).astype(int)
    width = STEPS // COLUMNS
    skips = np.zeros(STEPS, int)
    skips[np.array(steps.skipped, int) - 1] = 1
    counts = skips.reshape(COLUMNS, width).sum(axis=1)
    return [
        f"Loss scale, from 2^{low:g} to 2^{high:g}; a column is {width} steps",
        "  scale    " + "".join(blocks[height] for height in heights[::width]),
        "  skipped  " + "".join(str(min(n, 9)) if n else " " for n in counts).rstrip(),
        "",
    ]


def demo(policy: str | Policy = "O1", backend: str = "numpy", *, quiet: bool = True) -> Demo:
    """Train the digits' MLP in float32 on NumPy, and under ``policy`` on ``backend``.

    Args:
        quiet: whether to draw no progress bars on a terminal.

    Raises:
        PolicyError: if the policy cannot be read.
        BackendNotFoundError: for an unknown backend.
        AmpBridgeError: for a backend that is not installed, or refuses the policy.
    """
    parsed, recipe = Policy.parse(policy), workloads.recipe("digits")
    scaler = recipe.scaler if parsed.needs_scaling else None
    recipe = recipe.replace(policy=parsed, scaler=scaler)
    comparison = compare(recipe, [backend], steps=STEPS, quiet=quiet)
    for run in (comparison.reference, *comparison.runs):
        if run.error is not None:
            raise AmpBridgeError(run.error)
    return Demo(comparison)
