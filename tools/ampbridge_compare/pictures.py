"""The figures of a comparison below each other, as one PNG."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
from matplotlib.image import imread, imsave

from ampbridge_compare.comparison import Comparison
from ampbridge_compare.figures import WIDE, Drawing, drawings, heading


def png(comparison: Comparison) -> bytes:
    """A picture of all figures in their wide form, in the light colours."""
    parts = [heading(comparison), *drawings(comparison)]
    file = io.BytesIO()
    imsave(file, np.vstack([_pixels(part) for part in parts]), format="png")
    return file.getvalue()


def _pixels(drawing: Drawing) -> npt.NDArray[np.float32]:
    """(height, width, 4); all figures are of one width."""
    file = io.BytesIO()
    drawing.save(WIDE, file, "png")
    file.seek(0)
    pixels: npt.NDArray[np.float32] = imread(file)
    return pixels
