"""Names for native values in annotations: the core never asks for their types."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy.typing as npt

    NumpyArray: TypeAlias = npt.NDArray[Any]

Array: TypeAlias = Any
Scalar: TypeAlias = Any
Model: TypeAlias = Any
Optimizer: TypeAlias = Any
LossFn: TypeAlias = Callable[..., Any]
