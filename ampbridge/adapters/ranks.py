"""One of several processes acts for all of them."""

from __future__ import annotations

from collections.abc import Callable

from ampbridge.errors import StateError


def act_for_all(
    action: Callable[[], None], acts: bool, told: Callable[[str | None], str | None]
) -> None:
    """``action()`` on the process that ``acts``; the others wait for it, and fail if it has failed.

    Args:
        told: every process calls it once; it returns what the one that acts has passed to it.

    Raises:
        StateError: on the others, if ``action`` failed; where it did, its own error.
    """
    failure: Exception | None = None
    if acts:
        try:
            action()
        except Exception as error:
            failure = error
    text = told(None if failure is None else f"{type(failure).__name__}: {failure}")
    if failure is not None:
        raise failure
    if text is not None:
        raise StateError(f"The rank that acts for all could not. {text}")
