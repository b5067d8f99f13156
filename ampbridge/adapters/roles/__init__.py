"""What an adapter may do besides a step in mixed precision.

An adapter claims a role by overriding methods of it. Those that it leaves out refuse, and say what this
adapter cannot do: a backend without any of the roles trains.
"""

from __future__ import annotations

from ampbridge.errors import UnsupportedError


def claims(backend: object, role: type) -> bool:
    """Whether the class of ``backend`` overrides a method of ``role``."""
    methods = [
        name for name in vars(role) if not name.startswith("_") and callable(vars(role)[name])
    ]
    return any(overrides(backend, role, name) for name in methods)


def overrides(backend: object, protocol: type, method: str) -> bool:
    """Whether the class of ``backend`` has a method of its own in place of the protocol's default."""
    return getattr(type(backend), method) is not getattr(protocol, method)


def cannot(name: str, what: str, hint: str) -> UnsupportedError:
    """The error of an adapter that does not claim a role; ``name`` is the framework's."""
    return UnsupportedError(f"{name}: this adapter cannot {what}.\nHint: {hint}")
