"""Draw the README's picture: one recipe on four frameworks, its loss scale and its skipped steps.

    python scripts/write_picture.py

Trains the digits on each framework, in a process of its own (about a minute), and writes
docs/images/four_frameworks.svg.
"""

from __future__ import annotations

import io
from pathlib import Path

from ampbridge import workloads
from ampbridge.compare import compare
from ampbridge.compare.figures import WIDE, drawings

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "four_frameworks.svg"
FRAMEWORKS = ("numpy", "torch", "tensorflow", "paddle")


def main() -> None:
    comparison = compare(workloads.recipe("digits"), FRAMEWORKS, steps=120)
    (scales,) = [each for each in drawings(comparison) if each.name == "scales"]
    drawn = io.BytesIO()
    scales.save(WIDE, drawn, "svg")
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_bytes(drawn.getvalue())


if __name__ == "__main__":
    main()
