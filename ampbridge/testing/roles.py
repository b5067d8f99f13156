"""Tests of a role that an adapter may leave out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from ampbridge.adapters.roles import claims

Test = TypeVar("Test", bound=Callable[..., Any])


def needs(role: type) -> Callable[[Test], Test]:
    """Mark a test of the suite as one of ``role`` (``ampbridge.adapters.roles``)."""

    def mark(test: Test) -> Test:
        vars(test)["needs"] = role
        return test

    return mark


def skip_if_not_claimed(test: Callable[..., Any], backend: object) -> None:
    """Skip a test of a role that the class of ``backend`` does not claim."""
    role = vars(test).get("needs")
    if role is not None and not claims(backend, role):
        pytest.skip(f"not claimed: {role.__name__}")
