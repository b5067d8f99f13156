"""Whether this device computes a policy natively, or whether low precision is simulated."""

from __future__ import annotations

from typing import Literal

from ampbridge.policies.policy import Policy


def of(policy: Policy) -> Literal["native", "simulated"]:
    """See ``Backend.execution``. The two are one computation here; the name is the caller's choice."""
    return "simulated" if policy.execution == "simulated" else "native"
