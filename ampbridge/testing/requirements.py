"""Which frameworks a test run must have."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest


def require_framework(name: str) -> Any:
    """Import framework ``name`` for a test module, or skip the module.

    Where ``AMPBRIDGE_REQUIRE`` (a comma-separated list) names it, a missing framework is a failure:
    a run that tested nothing must not be green.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if name in os.environ.get("AMPBRIDGE_REQUIRE", "").split(","):
            pytest.fail(f"AMPBRIDGE_REQUIRE names {name}, which cannot be imported: {error}")
        pytest.skip(f"{name} is not installed", allow_module_level=True)
