"""Values that hold inside of a ``with`` statement, for this thread or task alone.

Ctrl-C may raise between any two steps of ``__enter__`` and ``__exit__``, and then nobody sets back
what was set. So nothing is set: a context variable refers weakly to the statements that were entered,
and the value is that of the innermost one that is still there. One that was cut off in the middle is
gone with its frame, as soon as the exception has been handled.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Generic, TypeVar
from weakref import ref

from ampbridge.adapters.tracing import called_as_it_is

T = TypeVar("T")

_Entered = tuple["ref[Scope[Any]]", Any]
"""A statement that was entered, and the entry of the one around it."""


class Scoped(Generic[T]):
    """A variable that a ``with`` statement gives a value: ``with variable.during(value): ...``."""

    def __init__(self, name: str, default: T) -> None:
        self.entered: ContextVar[_Entered | None] = ContextVar(name, default=None)
        self._default = default

    @called_as_it_is
    def get(self) -> T:
        """The value of the innermost statement that this thread or task is in, or the default."""
        entered = self.entered.get()
        while entered is not None:
            scope = entered[0]()
            if scope is not None and not scope.is_over:
                value: T = scope.value
                return value
            entered = entered[1]
        return self._default

    def during(self, value: T) -> Scope[T]:
        """A context manager in which ``get`` returns ``value``."""
        return Scope(self, value)


class Scope(Generic[T]):
    """One ``with`` statement in which a variable has a value; it is entered once."""

    __slots__ = ("__weakref__", "is_over", "value", "variable")

    def __init__(self, variable: Scoped[T], value: T) -> None:
        self.variable = variable
        self.value = value
        self.is_over = False

    def __enter__(self) -> None:
        entered = self.variable.entered
        entered.set((ref(self), entered.get()))

    @called_as_it_is
    def __exit__(self, *exception: object) -> None:
        self.is_over = True
        variable = self.variable.entered
        entered = variable.get()
        while entered is not None and ((scope := entered[0]()) is None or scope.is_over):
            entered = entered[1]
        variable.set(entered)
