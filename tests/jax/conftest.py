"""JAX in this process, with modules of flax and transformations of optax."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import pytest

if any(importlib.util.find_spec(name) is None for name in ("jax", "flax", "optax")):
    if "jax" in os.environ.get("AMPBRIDGE_REQUIRE", ""):
        raise ImportError(
            "AMPBRIDGE_REQUIRE asks for jax, which is not installed with flax and optax"
        )
    collect_ignore_glob = ["test_*.py"]
else:
    import jax

    @pytest.fixture
    def types_of_32_bits() -> Iterator[None]:
        """JAX as its users have it; the conformance suite's harness turns types of 64 bits on."""
        with jax.enable_x64(False):
            yield
