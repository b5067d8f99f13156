"""Tests of what an adapter may leave out: a role, or a method that the protocol has a default for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from ampbridge.adapters.backend import Backend
from ampbridge.adapters.roles import claims

Test = TypeVar("Test", bound=Callable[..., Any])


def needs(what: type | str) -> Callable[[Test], Test]:
    """Mark a test of the suite as one of a role (``ampbridge.adapters.roles``), or of a method by name."""

    def mark(test: Test) -> Test:
        vars(test)["needs"] = what
        return test

    return mark


def skip_if_not_claimed(test: Callable[..., Any], backend: object) -> None:
    """Skip a test of what the class of ``backend`` does not claim."""
    needed = vars(test).get("needs")
    if isinstance(needed, str) and not overrides(backend, needed):
        pytest.skip(f"not claimed: {needed}")
    if isinstance(needed, type) and not claims(backend, needed):
        pytest.skip(f"not claimed: {needed.__name__}")


def overrides(backend: object, method: str) -> bool:
    """Whether the class of ``backend`` has a method of its own in place of the protocol's default."""
    return getattr(type(backend), method) is not getattr(Backend, method)
