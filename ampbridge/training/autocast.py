"""The autocast region."""

from __future__ import annotations

import inspect
import types
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from itertools import count
from typing import Any, TypeVar

from ampbridge.adapters import registry
from ampbridge.adapters.arguments import described
from ampbridge.adapters.backend import Backend
from ampbridge.adapters.tracing import called_as_it_is, constant_result
from ampbridge.errors import ArgumentTypeError, UnsupportedError
from ampbridge.errors.foreign_names import told_of
from ampbridge.policies.policy import Policy
from ampbridge.policies.schedule import single
from ampbridge.training.decorate import warn_of_a_region_alone

Function = TypeVar("Function", bound=Callable[..., Any])


@called_as_it_is
@told_of("autocast")
def autocast(policy: str | Policy = "O1", backend: str | Backend | None = None) -> AutocastRegion:
    """Run the enclosed ops, or those of the decorated function, under ``policy``.

    Regions nest: only the inner policy applies, and an inner O0 region is all float32. Leaving a
    region by an exception restores the state before it. A region does not affect other threads or
    other asyncio tasks (on torch, tasks of one thread share their region, as with
    ``torch.autocast``); but what ``policy.float32`` sets belongs to the process. Compute gradients
    outside of the region.

        with amp.autocast("O1:bfloat16"):
            loss = loss_fn(model, x, y)

    One region may be entered many times: in turn, within itself, and by several threads or tasks at
    the same time. It decorates functions, generators, coroutines and asynchronous generators. The
    last three are in the region while they run, and not while they wait to be resumed.

        region = amp.autocast("O1:bfloat16")
        for x, y in batches:
            with region:
                loss = loss_fn(model, x, y)

    Args:
        policy: a Policy or its short form.
        backend: a name or a Backend; by default, the one registered framework that is imported.

    A region does not handle kept layers, nor the inputs and outputs of a model; use ``decorate``.

    Raises:
        BackendNotFoundError: without ``backend``, if no or several frameworks are imported.
        UnsupportedError: for a policy with kept layers.
        ArgumentTypeError: if the region decorates something other than a function.
    """
    return AutocastRegion(policy, backend)


@called_as_it_is
class AutocastRegion:
    """What ``autocast`` returns.

    The region holds its entries, so that one which an interrupt cut off ends with it. Which entry
    a ``with`` statement leaves is a matter of its thread or task: a context variable has the numbers
    of those that were entered there.
    """

    def __init__(self, policy: str | Policy, backend: str | Backend | None) -> None:
        self._policy = single(policy)
        if self._policy.keep:
            raise UnsupportedError(
                f"{self._policy!r}: a region has no model, so it cannot keep layers in float32.\n"
                "Hint: amp.decorate(model, policy=policy), then call the model; or "
                "policy.replace(keep=()) for the region."
            )
        self._backend: Backend = registry.backend(
            _loaded(backend) if backend is None or isinstance(backend, str) else backend
        )
        self._entries: dict[int, AbstractContextManager[None]] = {}

    def __enter__(self) -> None:
        entry = self._entry()
        entry.__enter__()
        self._entries[_number_entered()] = entry

    def __exit__(self, *exception: Any) -> None:
        number = _number_left([*self._entries])
        self._entries.pop(number).__exit__(*exception)

    @called_as_it_is
    def _entry(self) -> AbstractContextManager[None]:
        warn_of_a_region_alone(self._policy)
        return _entry(self._backend, self._policy)

    def __call__(self, function: Function) -> Function:
        """``function``, run in the region."""
        if isinstance(function, (staticmethod, classmethod)):
            return type(function)(self(function.__func__))
        self._check_is_function(function)
        return wraps(function)(_in_region(function, self._entry))  # type: ignore[return-value]

    def _check_is_function(self, thing: Any) -> None:
        """Refuse models and classes, which can be called too."""
        is_function = isinstance(thing, partial) or (callable(thing) and hasattr(thing, "__name__"))
        if not is_function or inspect.isclass(thing) or self._backend.kind(thing) is not None:
            raise ArgumentTypeError(
                "A region decorates a function, a generator or a coroutine, not "
                f"{described(thing, self._backend)}.\n"
                f"Hint: with amp.autocast({self._policy!r}): y = model(x)"
            )


@contextmanager
def _entry(backend: Backend, policy: Policy) -> Iterator[None]:
    """A block under ``policy``. It must not hold the region: it ends with the region."""
    with backend.autocast(policy):
        yield


def _in_region(
    function: Callable[..., Any], entry: Callable[[], AbstractContextManager[None]]
) -> Callable[..., Any]:
    """``function`` in regions, of the same kind: while it waits to be resumed it is in no region."""

    def plain(*args: Any, **kwargs: Any) -> Any:
        with entry():
            return function(*args, **kwargs)

    def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        return (yield from _resumed(entry, function(*args, **kwargs)))

    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        return await _resumed(entry, function(*args, **kwargs))

    async def async_generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        body = function(*args, **kwargs)
        resume, value = body.asend, None
        while True:
            try:
                given = await _resumed(entry, resume(value))
            except StopAsyncIteration:
                return
            try:
                resume, value = body.asend, (yield given)
            except BaseException as error:
                resume, value = body.athrow, error

    if inspect.isasyncgenfunction(function):
        return async_generator
    if inspect.iscoroutinefunction(function):
        return coroutine
    return generator if inspect.isgeneratorfunction(function) else plain


@types.coroutine
def _resumed(
    entry: Callable[[], AbstractContextManager[None]], body: Any
) -> Generator[Any, Any, Any]:
    """Run ``body``, a generator or a coroutine, in a new entry each time that it is resumed."""
    resume, value = body.send, None
    while True:
        with entry():
            try:
                given = resume(value)
            except StopIteration as end:
                return end.value
        try:
            resume, value = body.send, (yield given)
        except BaseException as error:  # GeneratorExit too: ``body`` decides
            resume, value = body.throw, error


_entered: ContextVar[tuple[int, ...]] = ContextVar("ampbridge regions", default=())
"""The numbers of the entries of this thread or task. They hold nothing: one that was cut off may stay."""

_next_number = count().__next__


# torch.compile follows no context variables, and runs these while it traces.
@constant_result
def _number_entered() -> int:
    number = _next_number()
    _entered.set((*_entered.get(), number))
    return number


@constant_result
def _number_left(entries: list[int]) -> int:
    """The number of the innermost of ``entries`` here, which is forgotten."""
    entered = _entered.get()
    here = [number for number in entered if number in entries]
    # There is none where a generator began in another thread.
    left = here[-1] if here else max(entries)
    _entered.set(tuple(number for number in entered if number != left))
    return left


@constant_result
def _loaded(name: str | None) -> str:
    """Load the backend of that name, or the active one; returns its name."""
    return (registry.active_backend() if name is None else registry.backend(name)).name
