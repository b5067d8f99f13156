"""torchvision's wheel on PyPI holds ops for CUDA alone: beside a torch for CPUs they cannot be loaded.

torchvision can then not be imported, nor timm or the picture models of transformers, which import it and
use none of those ops here. It only needs the two to be declared that it registers shapes for.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

ARGUMENTS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def declare() -> list[Any]:
    """What declares them; they are gone with it."""
    import torch

    found = find_spec("torchvision")
    if found is None or found.origin is None:
        return []
    try:
        torch.ops.load_library(str(Path(found.origin).with_name("_C.so")))
    except OSError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(name + ARGUMENTS)
        return [library]
    return []
