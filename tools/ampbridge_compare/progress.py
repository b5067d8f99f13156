"""A live bar for each job, on standard error; nothing where nobody would see it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ampbridge_compare.processes import Tell
from ampbridge_compare.runs import Job


@contextmanager
def bars(totals: Mapping[str, int], *, quiet: bool) -> Iterator[Tell]:
    """What tells the bars of jobs how far each is; ``totals`` has the length of each by label."""
    if quiet or not sys.stderr.isatty():
        yield lambda job, doing: None
        return
    from rich.console import Console  # a tenth of a second, for terminals alone
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[doing]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks = {
            label: progress.add_task(label, total=total, doing="waiting")
            for label, total in totals.items()
        }

        def tell(job: Job, doing: str) -> None:
            word, _, number = doing.partition(" ")
            if number:
                progress.update(tasks[job.label], completed=int(number), doing="")
            else:
                progress.update(tasks[job.label], doing=word)

        yield tell
