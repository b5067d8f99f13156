"""What goes wrong, and what to do about it.

Every error says what was passed, what is allowed, and ends with a ``Hint:`` line that holds the
code to write. Each class is also the built-in exception that a caller would expect.
"""

from __future__ import annotations

from collections.abc import Iterable


class AmpBridgeError(Exception):
    """Base class of every error that ampbridge raises on purpose."""


class PolicyError(AmpBridgeError, ValueError):
    """A policy that cannot be: unknown level, dtype, list set or op, or a contradiction."""


class ArgumentError(AmpBridgeError, ValueError):
    """A value outside of what is allowed."""


class ArgumentTypeError(AmpBridgeError, TypeError):
    """An object of the wrong kind."""


class ForeignNameError(AmpBridgeError, AttributeError):
    """A name of another library's; the hint says what it is called here."""


class CallOrderError(AmpBridgeError, RuntimeError):
    """Calls in an order that cannot work, such as a second ``step`` before ``update``."""


class StateError(AmpBridgeError, ValueError):
    """A saved state that cannot be loaded. Nothing has been changed."""


class RecipeError(AmpBridgeError, ValueError):
    """A recipe that cannot be read: unknown keys, impossible values, or no TOML at all."""


class WriteError(AmpBridgeError, OSError):
    """A file that cannot be written. What was there is as it was."""


class SourceError(AmpBridgeError, ValueError):
    """Foreign source or configuration that cannot be read, or does not say what is needed."""


class OverflowStuckError(AmpBridgeError, OverflowError):
    """Step after step overflows, and lowering the loss scale has not helped."""


class UnsupportedError(AmpBridgeError, NotImplementedError):
    """Something that this backend, or this version, cannot honour."""


class BackendNotFoundError(AmpBridgeError, LookupError):
    """No registered backend, or no single one, fits what was asked."""


class BackendLoadError(AmpBridgeError, ImportError):
    """A backend is registered but cannot be used."""


class AmpBridgeWarning(UserWarning):
    """Something is done for you, in another way than you may expect."""


class SimulationWarning(AmpBridgeWarning):
    """Low precision is simulated here: rounded values in float32 storage."""


def listed(names: Iterable[object]) -> str:
    """``'a', 'b' or 'c'``, for messages."""
    quoted = [repr(name) for name in names]
    return " or ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


def nearest(name: object, known: Iterable[str], count: int = 3) -> list[str]:
    """The known names that look most like ``name``, best first."""
    from difflib import get_close_matches  # only where something went wrong

    return get_close_matches(str(name), list(known), n=count, cutoff=0.6)
