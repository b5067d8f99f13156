"""Mixed precision for TensorFlow 2 with Keras 3. Importing this imports neither."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ampbridge.backend import Backend

__all__ = ["backend"]


def backend() -> Backend:
    """The adapter; imports TensorFlow and Keras."""
    from ampbridge_tensorflow.backend import TensorflowBackend

    return TensorflowBackend()
