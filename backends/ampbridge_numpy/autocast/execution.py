"""Whether this device computes a policy natively, or whether low precision is simulated."""

from __future__ import annotations

from typing import Literal

from ampbridge.policies.policy import Policy


def of(policy: Policy) -> Literal["native", "simulated"]:
    """See ``Backend.execution``. Both are the same computation; the caller chooses the name."""
    return "simulated" if policy.execution == "simulated" else "native"
