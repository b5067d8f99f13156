"""JAX in this process, with modules of flax and transformations of optax."""

from __future__ import annotations

import importlib.util
import os

if any(importlib.util.find_spec(name) is None for name in ("jax", "flax", "optax")):
    if "jax" in os.environ.get("AMPBRIDGE_REQUIRE", ""):
        raise ImportError("AMPBRIDGE_REQUIRE asks for jax, which is not installed with flax and optax")
    collect_ignore_glob = ["test_*.py"]
