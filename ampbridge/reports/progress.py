"""How far something long has come: told to a function of the caller's, or shown as a bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from ampbridge.errors import ArgumentTypeError

Report: TypeAlias = Callable[[int, int, str], None]
"""Called with what is done, how much there will be as far as is known by now, and what comes next."""

Progress: TypeAlias = bool | Report | None
"""True: a bar on standard error where that is a terminal. A function: it is told. Else: nothing."""


@contextmanager
def reported(progress: Progress) -> Iterator[Report]:
    """What to tell how far it is.

    Raises:
        ArgumentTypeError: for what is none of these.
    """
    if callable(progress):
        yield progress
    elif progress is True and sys.stderr.isatty():
        with _bar() as report:
            yield report
    elif progress in (True, False, None):
        yield lambda done, total, doing: None
    else:
        msg = f"progress is True, False or a function, not {progress!r:.80}.\n"
        raise ArgumentTypeError(
            msg + "Hint: progress=lambda done, total, doing: print(done, total)"
        )


@contextmanager
def _bar() -> Iterator[Report]:
    from rich.console import Console  # a tenth of a second, for terminals alone
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    from ampbridge.errors.foreign_text import printable

    doing_now = TextColumn("{task.description}", markup=False)
    columns = (BarColumn(), MofNCompleteColumn(), doing_now)
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, doing: bar.update(
            task, completed=done, total=total, description=printable(doing)
        )
