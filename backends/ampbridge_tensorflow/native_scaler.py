"""The framework's own scaler, from ours and to ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ampbridge.errors import UnsupportedError


def native_scaler(state: Mapping[str, Any], optimizer: Any) -> Any:
    """See ``Backend.native_scaler``."""
    raise UnsupportedError("not yet")


def native_scaler_state(scaler: Any) -> Mapping[str, Any]:
    """See ``Backend.native_scaler_state``."""
    raise UnsupportedError("not yet")
