"""Settings of torch's compiler that a region needs: ours are set, a user's own are looked at.

Dynamo calls the checks while it traces. A setting is the user's own, and is read after the tracing.
"""

from __future__ import annotations

import torch

from ampbridge.adapters.calling_code import warn
from ampbridge.adapters.scoped import Scoped
from ampbridge.errors import UnsupportedError
from ampbridge_torch import _private

in_our_hands: Scoped[bool] = Scoped("ampbridge_torch compiles", False)
"""Whether what is being traced is compiled by ``compiling``, which has the right settings."""


@torch.compiler.assume_constant_result
def check_backward_pass() -> bool:
    """Warn of a function that a user compiles under lists that keep GEMMs in float32."""
    harmless = in_our_hands.get() or not _private.backward_autocast_is_on()
    if not harmless:
        warn(
            "torch.compile computes the backward pass of this function inside of autocast: denied "
            "ops get low-precision gradients.\n"
            "Hint: torch._functorch.config.backward_pass_autocast = 'off'"
        )
    return harmless


@torch.compiler.assume_constant_result
def check_roundings() -> bool:
    """Warn of a function that a user compiles under simulation: Inductor would fuse roundings away."""
    harmless = in_our_hands.get() or _private.inductor_keeps_roundings()
    if not harmless:
        hint = "torch._inductor.config.emulate_precision_casts = True"
        if not _private.INDUCTOR_CAN_KEEP_ROUNDINGS:
            hint = "torch.compile(function, backend='aot_eager'), or torch 2.13"
        warn(
            "torch.compile leaves out roundings between the ops of this function, which is simulated: "
            "it computes in more precision than was asked for.\n"
            f"Hint: {hint}"
        )
    return harmless


@torch.compiler.assume_constant_result
def refuse_to_compile(what: str) -> None:
    """Raise for a policy that names ``what`` does not see; Dynamo calls this while it traces."""
    raise UnsupportedError(
        f"The policy names {what} does not see.\n"
        "Hint: @amp.register_op above the function that is called, and its name in the policy."
    )
