"""A policy in Paddle's own names: ops of ``paddle._C_ops``, Python functions, AMP list entries.

Paddle has three layers of names. Kernels are called through ``paddle._C_ops`` (``matmul``); its AMP
lists hold the names of the old static graph (``matmul_v2``); and some canonical ops have no kernel
of their own, they are Python functions made of several (``mse_loss``).
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from inspect import unwrap
from typing import Any, Literal

import paddle

from ampbridge.policies import function_ops, op_table
from ampbridge.policies.effects import warn_of_rules_without_effect
from ampbridge.policies.op_table import Category
from ampbridge.policies.paddle_names import paddle_names
from ampbridge.policies.policy import POLICIES_REMEMBERED, Policy
from ampbridge_paddle._private import private

# Kernels that the table does not list by name -> the listed kernel they are a form of.
SAME_OP: Mapping[str, str] = {
    "linear": "linear_v2",  # what a CPU build calls for F.linear; a GPU build calls linear_v2
    "batch_norm": "batch_norm_",
    "split": "split_with_num",
    "strided_slice": "slice",
    "expand_as": "expand",
    "unstack": "unbind",
    "depthwise_conv2d_bias": "depthwise_conv2d",
    "scale": "multiply",  # x * 2.0, and x + 1.0 too
}

# Functions that only make, convert or detach a tensor, compute later, or take sparse tensors, which are
# never cast: no rule could take effect.
WITHOUT_EFFECT = frozenset(
    {"cast", "zeros_like", "ones_like", "full", "weight_norm", "sparse_matmul", "stop_gradient"}
)

# Their Python makes a real input complex, by its dtype, before it calls a kernel; so their rules are for the
# whole function, too.
_COMPLEX_BEFORE_THE_KERNEL = frozenset({"fft_hfft", "fft_irfft", "fft_irfft2", "fft_irfftn"})

# Its projections and its softmax have rules of their own, as in torch; a list set that names it
# means the fused kernel.
SEEN_THROUGH = frozenset({"multi_head_attention"})


@dataclass(frozen=True)
class Rules:
    """What a region does, by name. ``functions`` are made of several kernels, and have dotted names."""

    dtype: str
    kernels: Mapping[str, Category]
    unlisted: Category
    functions: Mapping[str, Category]
    bias_follows: bool
    """Whether the bias of a convolution is rounded with it (torch's fused op) or added as it is."""
    python: Mapping[str, Category] = field(default_factory=dict)
    """Python functions of others that are ops (``ampbridge.policies.function_ops``), by name."""

    def category(self, kernel: str) -> Category:
        """The rule for a name of ``paddle._C_ops``."""
        rule = self.kernels.get(kernel)
        return rule or self.kernels.get(SAME_OP.get(kernel, kernel), self.unlisted)

    def everything(self, category: Category) -> Rules:
        """The rules inside of a layer that runs in one precision as a whole."""
        return Rules(self.dtype, {}, category, {}, self.bias_follows)


def rules_for(policy: Policy) -> Rules:
    """Compile ``policy``, once, and warn of ops that Paddle does not have.

    Raises:
        PolicyError: if it lists an op that does not exist.
    """
    return _rules_for(policy, function_ops.rules_of(policy))


@lru_cache(POLICIES_REMEMBERED)
def _rules_for(policy: Policy, python: function_ops.Rules) -> Rules:
    if policy.level == "O0":
        return Rules("float32", {}, "deny", {}, True)
    warn_of_rules_without_effect(policy, "paddle", "PaddlePaddle", "paddle", has_effect)
    return Rules(
        policy.dtype,
        {**policy.native_rules("paddle_ops"), **_own_rules(policy)},
        "deny" if policy.op_list.unlisted == "full" else "promote",
        _function_rules(policy, dict(python)),
        # Paddle's rule: conv2d returns the low precision, adding a float32 bias promotes again.
        bias_follows=policy.lists != "paddle",
        python=dict(python),
    )


# Not ops of the user's model: a compiled program's own call, raw memory, how a traced program names values.
_NOT_OPS = frozenset(
    {
        *("run_program", "view_dtype", "data", "fetch", "parameter", "set_parameter"),
        *("set_persistable_value", "shadow_output", "update_parameter"),
    }
)


def is_op(name: str, kernel: Any) -> bool:
    """Whether a name of ``_C_ops`` is a kernel of a forward pass."""
    if not isinstance(kernel, types.BuiltinFunctionType) or name in _NOT_OPS:
        return False
    return not (name.endswith(("_grad", "_grad_")) or name.startswith("__"))


def _own_rules(policy: Policy) -> Mapping[str, Category]:
    """The rules of listed kernels that the op table does not have.

    Refuses a name that no kernel has, and one that changes its input in place, which is never cast.
    """
    rules = policy.own_rules("paddle")
    kernels = vars(private("paddle._C_ops"))
    for name in rules:
        if name.endswith("_") or not is_op(name, unwrap(kernels.get(name, None))):
            where = f"paddle._C_ops of PaddlePaddle {paddle.__version__}"
            raise op_table.no_such_op(f"paddle:{name}", where, kernels)
    return rules


@cache
def functions_of_ops() -> Mapping[str, str]:
    """The ops that are no kernel here, by the dotted names of the functions and layers that are they."""
    return {
        name: op.name
        for op in op_table.ops().values()
        if (not op.names.get("paddle_ops") or op.name in _COMPLEX_BEFORE_THE_KERNEL)
        and op.name not in WITHOUT_EFFECT
        for name in op.names.get("paddle_api", ())
    }


def _function_rules(policy: Policy, python: Mapping[str, Category]) -> dict[str, Category]:
    """Tell which functions have a rule as a whole. The others do what their parts do.

    Those that the user named have one. So have the others, by the list set; except by Paddle's own
    lists, which know kernels alone. One in ``python``, by its path, has that rule.
    """
    named = {*policy.allow, *policy.deny}
    by_path = {path.replace(":", "."): rule for path, rule in python.items()}
    rules = policy.native_rules("paddle_api")
    found: dict[str, Category] = {}
    for name, op in functions_of_ops().items():
        if name in by_path:
            found[name] = by_path[name]
        elif op in named or (policy.lists != "paddle" and op not in SEEN_THROUGH):
            found[name] = rules[name]
    return found


def has_effect(op: op_table.Op) -> bool:
    """Whether Paddle has something to cast that is ``op``."""
    if op.name in WITHOUT_EFFECT:
        return False
    return bool(op.names.get("paddle_ops") or op.names.get("paddle_api"))


@dataclass(frozen=True)
class AmpLists:
    """White and black list in the names of Paddle's AMP; whatever is in neither promotes."""

    level: Literal["O1", "O2"]
    dtype: str
    white: frozenset[str]
    black: frozenset[str]


@lru_cache(POLICIES_REMEMBERED)
def amp_lists_for(policy: Policy) -> AmpLists:
    """``policy`` as the lists that Paddle's own dispatcher follows."""
    if policy.level == "O0":
        return lists_of_everything("float16", "deny")
    listed = dict(policy.native_rules("paddle"))
    listed["scale"] = listed["elementwise_mul"]  # x * 2.0, and x + 1.0 too
    for op in (*policy.allow, *policy.deny):
        if op_table.own_prefix(op) == "paddle":
            listed |= dict.fromkeys(paddle_names(op), policy.category(op))
    white = frozenset(name for name, category in listed.items() if category == "allow")
    black = frozenset(name for name, category in listed.items() if category == "deny")
    if policy.op_list.unlisted == "full":
        black |= _every_name() - frozenset(listed)
    return AmpLists("O2" if policy.level == "O2" else "O1", policy.dtype, white, black)


@cache
def lists_of_everything(dtype: str, category: Category) -> AmpLists:
    """Lists under which every op is allowed, or every op denied."""
    every, none = _every_name(), frozenset[str]()
    white, black = (every, none) if category == "allow" else (none, every)
    return AmpLists("O1", dtype, white, black)


@cache
def _every_name() -> frozenset[str]:
    return frozenset(private("paddle.base.core.get_all_op_names")()) | frozenset(
        op_table.native_names("paddle")
    )
