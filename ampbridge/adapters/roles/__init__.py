"""What an adapter may do besides a step in mixed precision.

An adapter claims a role by overriding methods of it. Those that it leaves out refuse, and say what this
adapter cannot do: a backend without any of the roles trains.
"""

from __future__ import annotations

from ampbridge.errors import UnsupportedError


def cannot(name: str, what: str, hint: str) -> UnsupportedError:
    """The error of an adapter that does not claim a role; ``name`` is the framework's."""
    return UnsupportedError(f"{name}: this adapter cannot {what}.\nHint: {hint}")
