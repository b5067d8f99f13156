"""Whether this device computes a policy natively: XLA has 16-bit kernels on every device."""

from __future__ import annotations

from typing import Literal

from ampbridge.adapters.roles import cannot
from ampbridge.policies.policy import Policy


def of(policy: Policy) -> Literal["native", "simulated"]:
    """See ``Backend.execution``.

    Raises:
        UnsupportedError: for simulation.
    """
    if policy.execution == "simulated":
        raise cannot("jax", "simulate low precision", "execution='auto'")
    return "native"
