"""A policy as Keras' ``DTypePolicy``, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from ampbridge.errors import ArgumentTypeError, UnsupportedError
from ampbridge.policies.policy import Policy

# (compute dtype, variable dtype) -> the policy: layers in low precision, with or without float32
# variables. Keras has no lists: its normalizations see to themselves, as TensorFlow's lists would.
_POLICIES: Mapping[tuple[str, str], Policy] = {
    ("float32", "float32"): Policy("O0"),
    **{
        (dtype, variables): Policy(
            "O2", dtype, lists="tensorflow", masters="float32" if variables == "float32" else None
        )
        for dtype in ("float16", "bfloat16")
        for variables in ("float32", dtype)
    },
}


def native_policy(policy: Policy) -> keras.DTypePolicy:
    """See ``Backend.native_policy``."""
    mixed = policy.compute_dtype != policy.variable_dtype
    return keras.DTypePolicy(f"mixed_{policy.dtype}" if mixed else policy.dtype)


def policy_of_native(native: Any) -> Policy:
    """See ``Backend.policy_of_native``."""
    if not isinstance(native, keras.DTypePolicy):
        msg = f"{type(native).__name__} is no keras.DTypePolicy.\n"
        raise ArgumentTypeError(
            msg + "Hint: Policy.from_native(keras.DTypePolicy('mixed_float16'))"
        )
    dtypes = (native.compute_dtype, native.variable_dtype)
    if native.quantization_mode is not None or dtypes not in _POLICIES:
        msg = f"No policy says what {native!r} does.\n"
        raise UnsupportedError(msg + "Hint: keras.DTypePolicy('mixed_float16')")
    return _POLICIES[dtypes]
