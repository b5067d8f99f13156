"""Tests of what an adapter may leave out: a role, or a method that the protocol has a default for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from ampbridge.adapters.backend import Backend

Test = TypeVar("Test", bound=Callable[..., Any])


def claims(backend: object, role: type) -> bool:
    """Whether the class of ``backend`` overrides a method of ``role``."""
    methods = [
        name for name in vars(role) if not name.startswith("_") and callable(vars(role)[name])
    ]
    return any(overrides(backend, role, name) for name in methods)


def overrides(backend: object, protocol: type, method: str) -> bool:
    """Whether the class of ``backend`` has a method of its own in place of the protocol's default."""
    return getattr(type(backend), method) is not getattr(protocol, method)


def needs(what: type | str) -> Callable[[Test], Test]:
    """Mark a test of the suite as one of a role (``ampbridge.adapters.roles``), or of a method by name."""

    def mark(test: Test) -> Test:
        vars(test)["needs"] = what
        return test

    return mark


def skip_if_not_claimed(test: Callable[..., Any], backend: object) -> None:
    """Skip a test of what the class of ``backend`` does not claim."""
    needed = vars(test).get("needs")
    if needed is not None:
        skip_unless_claimed(needed, backend)


def skip_unless_claimed(what: type | str, backend: object) -> None:
    """Skip the present test unless the class of ``backend`` claims a role, or has a method of its own."""
    if isinstance(what, str):
        claimed, name = overrides(backend, Backend, what), what
    else:
        claimed, name = claims(backend, what), what.__name__
    if not claimed:
        pytest.skip(f"not claimed: {name}")
