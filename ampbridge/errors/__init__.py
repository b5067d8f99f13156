"""What goes wrong, and what to do about it.

Every error says what was passed, what is allowed, and ends with a ``Hint:`` line that holds the
code to write. Each class is also the built-in exception that a caller would expect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING


class AmpBridgeError(Exception):
    """The base class of every error that ampbridge raises."""

    if not TYPE_CHECKING:
        __init__ = Exception.__init__  # as AutoGraph asks of a class that it shall raise itself


class PolicyError(AmpBridgeError, ValueError):
    """An invalid policy: an unknown level, dtype, list set or op, or a contradiction."""


class ArgumentError(AmpBridgeError, ValueError):
    """A value that is not allowed."""


class ArgumentTypeError(AmpBridgeError, TypeError):
    """An object of the wrong kind."""


class ForeignNameError(AmpBridgeError, AttributeError):
    """A name from another library; the hint shows the name in ampbridge."""


class CallOrderError(AmpBridgeError, RuntimeError):
    """Calls in an order that cannot work, such as a second ``step`` before ``update``."""


class StateError(AmpBridgeError, ValueError):
    """A saved state that cannot be loaded. Nothing has been changed."""


class RecipeError(AmpBridgeError, ValueError):
    """A recipe that cannot be read: unknown keys, invalid values, or invalid TOML."""


class WriteError(AmpBridgeError, OSError):
    """A file that cannot be written. The previous file is unchanged."""


class SourceError(AmpBridgeError, ValueError):
    """Foreign source or configuration that cannot be read, or that lacks a needed setting."""


class OverflowStuckError(AmpBridgeError, OverflowError):
    """Too many steps in a row overflowed, and lowering the loss scale did not help."""


class UnsupportedError(AmpBridgeError, NotImplementedError):
    """Something that this backend, or this version, does not support."""


class BackendNotFoundError(AmpBridgeError, LookupError):
    """No registered backend matches, or more than one does."""


class BackendLoadError(AmpBridgeError, ImportError):
    """A backend is registered but cannot be used."""


class AmpBridgeWarning(UserWarning):
    """ampbridge does something for you in a way that you may not expect."""


class SimulationWarning(AmpBridgeWarning):
    """Low precision is simulated: values are rounded, and stored in float32."""


def listed(names: Iterable[object]) -> str:
    """``'a', 'b' or 'c'``, for messages."""
    quoted = [repr(name) for name in names]
    return " or ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


def first_of(names: Sequence[str]) -> str:
    """The first four of ``names``, for messages: ``a, b, c, d, ...``."""
    return ", ".join([*names[:4], "..."] if len(names) > 4 else names)


def nearest(name: object, known: Iterable[str], count: int = 3) -> list[str]:
    """The known names that look most like ``name``, best first."""
    from difflib import get_close_matches  # only where something went wrong

    return get_close_matches(str(name)[:100], list(known), n=count, cutoff=0.6)


def one_of(close: Sequence[str], otherwise: str) -> str:
    """The hint for a name that looks like some others, the names in ``close``; or ``otherwise``."""
    return f"did you mean {' or '.join(map(repr, close))}?" if close else otherwise
