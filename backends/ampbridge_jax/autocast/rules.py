"""A policy as rules by JAX's names: which primitive or function computes in which dtype."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache, reduce
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import jax.numpy as jnp
from flax import nnx
from jax import lax

from ampbridge.adapters import registry
from ampbridge.policies import function_ops, op_table
from ampbridge.policies.effects import refuse_native_lists, warn_of_rules_without_effect
from ampbridge.policies.policy import POLICIES_REMEMBERED, Policy

FLOAT32 = jnp.dtype("float32")
CASTABLE = frozenset(map(jnp.dtype, ("float16", "bfloat16", "float32")))

ATTENTION = "scaled_dot_product_attention"

FUNCTIONS = {
    "softmax": "softmax",
    "logsumexp": "logsumexp",
    "gelu": "gelu",
    "dot_product_attention": ATTENTION,
    "softmax_cross_entropy": "cross_entropy",
    "softmax_cross_entropy_with_integer_labels": "cross_entropy",
}
"""Functions that have no name in a trace -> canonical ops."""

LAYERS: dict[type, str] = {
    nnx.Linear: "linear",
    nnx.LinearGeneral: "linear",
    nnx.Conv: "conv2d",
    nnx.ConvTranspose: "conv_transpose2d",
    nnx.Einsum: "einsum",
    nnx.BatchNorm: "batch_norm",
    nnx.GroupNorm: "group_norm",
    nnx.InstanceNorm: "instance_norm",
    nnx.LayerNorm: "layer_norm",
    nnx.RMSNorm: "rms_norm",
}
"""Layers that are one op each, as they are elsewhere -> canonical ops."""

MOVES = frozenset(
    {
        "convert_element_type",
        "copy",
        "copy_p",
        "device_put",
        "bitcast_convert_type",
        "reduce_precision",
    }
)
"""Primitives that only move or convert values."""


@cache
def canonical_names() -> Mapping[str, str]:
    """Names of primitives, and of JAX's functions that a trace sees -> canonical ops."""
    return {name: ops[0] for name, ops in op_table.native_names("jax").items()}


@cache
def products() -> frozenset[str]:
    """Those names that stand for products, whose parts are cast one by one."""
    families = {name: op_table.op(op).family for name, op in canonical_names().items()}
    return frozenset(n for n, found in families.items() if found in ("matmul", "conv", "attention"))


OF_MATRICES = ("dot", "inner")
"""Functions of ``jax.numpy`` that are matmul of matrices, and of vectors an op of their own."""


@cache
def float32_functions() -> Mapping[str, str]:
    """Functions of JAX's modules for linear algebra, but products, and for Fourier transforms -> ops."""
    return {
        name.rpartition(".")[2]: ops[0]
        for name, ops in op_table.native_names("jax_api").items()
        if op_table.op(ops[0]).family == "linalg" or name.startswith("jax.numpy.fft.")
    }


@cache
def known_ops() -> frozenset[str]:
    """The canonical ops that are one op on JAX."""
    functions = {**FUNCTIONS, **float32_functions(), **canonical_names()}
    return frozenset(functions.values()).union(LAYERS.values())


_numbers = count()


class Rules:
    """What a region does with each op.

    Attributes:
        number: tells these rules from others, in the names of scopes and in the keys of ``jax.jit``.
        low: the dtype of allowed ops.
        categories: by JAX's names.
        unlisted: the category of all others.
        by_op: by canonical ops.
        functions: Python functions that the policy allows or denies.
    """

    def __init__(
        self,
        low: Any,
        categories: Mapping[str, str],
        unlisted: str,
        by_op: Mapping[str, str] | None = None,
        functions: Mapping[str, str] | None = None,
    ) -> None:
        self.number = next(_numbers)
        self.low, self.categories, self.unlisted = low, categories, unlisted
        self.by_op, self.functions = by_op or {}, functions or {}
        _numbered[self.number] = self

    def category(self, name: str) -> str:
        """The category of an op by JAX's name."""
        return self.categories.get(name, self.unlisted)

    def of_function(self, name: str) -> Any:
        """The dtype of a Python function that the policy lists; None if it does not."""
        return {"allow": self.low, "deny": FLOAT32}.get(self.functions.get(name, ""))

    def called(self, name: str, values: Sequence[Any]) -> str:
        """The name by whose rule a function runs: matmul's for matrices, if its own name has none."""
        if name not in OF_MATRICES or self.categories.get(name) != "promote":
            return name
        dimensions = [jnp.ndim(x) for x in values]
        return "matmul" if min(dimensions) and max(dimensions) > 1 else name

    def dtype(self, category: str, values: Sequence[Any]) -> Any:
        """The dtype in which an op of ``category`` computes with ``values``."""
        if category == "allow":
            return self.low
        found = [x for x in values if is_castable(x)]
        if category == "deny" or not found:
            return FLOAT32
        arrays = [x.dtype for x in found if getattr(x, "ndim", 0)] or [x.dtype for x in found]
        return reduce(jnp.promote_types, arrays)


_numbered: WeakValueDictionary[int, Rules] = WeakValueDictionary()

ALL_FLOAT32 = Rules(FLOAT32, {}, "deny")
UNTOUCHED = Rules(FLOAT32, {}, "promote")
"""Nothing is cast, and the lens may look."""
FOLLOW = Rules(FLOAT32, {}, "promote")
"""A function that follows its inputs, as a whole."""
DENIED = Rules(FLOAT32, {}, "deny")
"""Inside of one of JAX's own functions that is denied, and was traced for low inputs."""
WITHIN = {
    "float16": Rules(jnp.dtype("float16"), {}, "allow"),
    "bfloat16": Rules(jnp.dtype("bfloat16"), {}, "allow"),
    "float32": ALL_FLOAT32,
}
"""A function that is one op, all of it in one dtype."""


def numbered(number: int) -> Rules | None:
    """The rules of that number; None if nobody has them any more."""
    return _numbered.get(number)


def rules_of(policy: Policy) -> Rules:
    """The rules of a policy.

    Raises:
        UnsupportedError: for what JAX does not have.
    """
    return _rules_of(policy, function_ops.rules_of(policy))


@lru_cache(POLICIES_REMEMBERED)
def _rules_of(policy: Policy, functions: function_ops.Rules) -> Rules:
    if policy.level == "O0":
        return ALL_FLOAT32
    refuse_native_lists(policy, "JAX")
    registry.backend("jax").execution(policy)  # which refuses to simulate
    warn_of_rules_without_effect(policy, "jax", "JAX", "jax", lambda op: op.name in known_ops())
    ops = policy.op_list
    categories: dict[str, str] = {name: ops.category(op) for name, op in canonical_names().items()}
    unlisted = "deny" if ops.unlisted == "full" else "promote"
    by_op: dict[str, str] = {op: ops.category(op) for op in op_table.ops()}
    return Rules(jnp.dtype(policy.dtype), categories, unlisted, by_op, dict(functions))


# -- casts


def is_castable(x: Any) -> bool:
    """Whether ``x`` is an array of 16 or 32 bits."""
    return getattr(x, "dtype", None) in CASTABLE


def to(x: Any, dtype: Any) -> Any:
    """``x`` in ``dtype``, if it is castable."""
    return lax.convert_element_type(x, dtype) if is_castable(x) and x.dtype != dtype else x


def cast(x: Any, dtype: str) -> Any:
    """See ``Backend.cast``."""
    return to(jnp.asarray(x, "float32") if isinstance(x, float) else x, jnp.dtype(dtype))
