"""Draw the README's picture: one recipe on five frameworks, its loss scale and its skipped steps.

    python scripts/write_picture.py

Trains the digits on each framework, in a process of its own (about a minute), and writes
docs/images/five_frameworks.svg and, for phones, five_frameworks_narrow.svg.
"""

from __future__ import annotations

import io
from pathlib import Path

from ampbridge import workloads
from ampbridge_compare import compare
from ampbridge_compare.figures import NARROW, WIDE, drawings

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
PICTURES = {"five_frameworks.svg": WIDE, "five_frameworks_narrow.svg": NARROW}
FRAMEWORKS = ("numpy", "torch", "tensorflow", "paddle", "jax")


def main() -> None:
    comparison = compare(workloads.recipe("digits"), FRAMEWORKS, steps=120)
    (scales,) = [each for each in drawings(comparison) if each.name == "scales"]
    IMAGES.mkdir(exist_ok=True)
    for name, look in PICTURES.items():
        drawn = io.BytesIO()
        scales.save(look, drawn, "svg")
        (IMAGES / name).write_bytes(drawn.getvalue())


if __name__ == "__main__":
    main()
