"""Ctrl-C, made to wait while a step takes effect, or a decoration.

An optimizer changes one parameter after the other, and the counters come after it. An interrupt in
between would leave a step that has happened in part, which nothing can take back without a copy of
all weights. So from there on it waits for the end, some milliseconds.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from importlib import import_module
from types import FrameType
from typing import Any

# Of the C module: what ``signal`` has around them turns numbers to names, in 30 us a step.
_signal: Any = import_module("_signal")
_set_handler, _handler_of = _signal.signal, _signal.getsignal

LAST_OF_SEVERAL = nullcontext()
"""For the end of a ``with`` of several: Ctrl-C there comes ahead of its exit, and the others are called."""

_innermost: Whole | None = None
"""The main thread's, which is the one that signals reach."""


class Whole:
    """A block that Ctrl-C ends at once until ``hold_interrupts`` is called in it, and then at its end.

    A second Ctrl-C does not wait. Outside of the main thread, and where something other than Python
    handles the signal, nothing is held.
    """

    _handler: Any = None
    _came: FrameType | bool | None = None
    _outer: Whole | None = None
    _is_main = False

    def __enter__(self) -> None:
        global _innermost
        self._is_main = threading.get_ident() == threading.main_thread().ident
        if self._is_main:
            self._outer, _innermost = _innermost, self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._came is not None:
            self._release()
        self._came = frame or True

    def _release(self) -> None:
        """Put the handler from before back, and tell it of the signal that came."""
        handler = self._handler
        _set_handler(signal.SIGINT, handler)  # first: a signal that comes later is none of ours
        came, self._handler, self._came = self._came, None, None
        if came is not None:
            handler(signal.SIGINT, None if came is True else came)

    def __exit__(self, *exception: object) -> None:
        global _innermost
        if self._is_main:
            _innermost = self._outer
            if self._handler is not None:
                self._release()


def hold_interrupts() -> None:
    """Let Ctrl-C wait from here to the end of the innermost ``Whole`` block."""
    block = _innermost
    if block is not None and threading.get_ident() == threading.main_thread().ident:
        handler = _handler_of(signal.SIGINT)
        if block._handler is None and callable(handler):
            block._handler = handler
            _set_handler(signal.SIGINT, block._note)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A block in which Ctrl-C waits for the end."""
    with Whole():
        hold_interrupts()
        yield


@contextmanager
def put_back_after(put_back: Callable[[], object]) -> Iterator[None]:
    """A block after which ``put_back`` has run to its end: where Ctrl-C cuts it off, it runs once more."""
    with ExitStack() as stack, LAST_OF_SEVERAL:
        stack.callback(put_back)
        stack.callback(put_back)
        yield
