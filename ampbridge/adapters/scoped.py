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
        self._entered: ContextVar[_Entered | None] = ContextVar(name, default=None)
        self._default = default

    def get(self) -> T:
        """The value of the innermost statement that this thread or task is in, or the default."""
        scope = self._innermost()[0]
        return self._default if scope is None else scope.value

    def during(self, value: T) -> Scope[T]:
        """A context manager in which ``get`` returns ``value``."""
        return Scope(self, value)

    @called_as_it_is
    def _innermost(self) -> tuple[Scope[T] | None, _Entered | None]:
        """The innermost statement that is still there, and its entry."""
        entered = self._entered.get()
        while entered is not None:
            scope = entered[0]()
            if scope is not None and not scope.is_over:
                return scope, entered
            entered = entered[1]
        return None, None

    def _enter(self, scope: Scope[T]) -> None:
        self._entered.set((ref(scope), self._innermost()[1]))

    def _leave(self) -> None:
        self._entered.set(self._innermost()[1])


class Scope(Generic[T]):
    """One ``with`` statement in which a variable has a value; it is entered once."""

    __slots__ = ("__weakref__", "is_over", "value", "variable")

    def __init__(self, variable: Scoped[T], value: T) -> None:
        self.variable = variable
        self.value = value
        self.is_over = False

    def __enter__(self) -> None:
        self.variable._enter(self)

    def __exit__(self, *exception: object) -> None:
        self.is_over = True
        self.variable._leave()
