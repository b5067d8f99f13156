"""Frozen parameters that are low at O2 and that somebody writes to: averages of weights, statistics.

In 16 bits small changes are lost: at a decay of 0.999 an average stands still, and nothing shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from posixpath import commonpath

from ampbridge.adapters.calling_code import warn
from ampbridge.errors import first_of


class FrozenWrites:
    """Warns once, early in a training, of frozen parameters that are written to.

    at each of the first looks:
        written <- the names of those that were written to since the last
        if some were written to before the last one as well: warn of them, and look no more
    """

    LOOKS = 10

    def __init__(self) -> None:
        self._looks_left = self.LOOKS
        self._written: set[str] = set()  # before the first look: initialised, or loaded

    def look(self, written: Callable[[], Iterable[str]]) -> None:
        """``written`` gives the names of those that were written to since it was called last."""
        if not self._looks_left:
            return
        before, self._written = self._written, set(written())
        again = sorted(before & self._written)
        self._looks_left = 0 if again else self._looks_left - 1
        if again:
            # The innermost layer that has all of them; else those that have some themselves.
            layers = [name.rpartition(".")[0] for name in again]
            around = commonpath([layer.replace(".", "/") for layer in layers]).replace("/", ".")
            named = [around] if around else sorted({*layers} - {""})
            keep = f"Policy(..., keep={named!r}); or " if named else ""
            warn(
                "Frozen parameters are written to between steps at O2, in low precision, where small "
                f"changes are lost (an average stands still): {first_of(again)}.\n"
                f"Hint: {keep}with amp.undecorated(model): around what writes to them."
            )
