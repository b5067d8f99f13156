"""The output options and the exit codes that all commands share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ampbridge.errors import ArgumentError

Commands = Any
"""What argparse's ``add_subparsers`` returns, which has no public name."""

EXIT_CODES = "Exit code: 0 for success, 1 for an error or a failure, 2 for invalid arguments."

QUIET = "print only errors on standard error: no progress, no warnings"


def add_output(parser: argparse.ArgumentParser) -> None:
    """``--json`` and ``--quiet``."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_quiet(parser)


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Only ``--quiet``, for a command whose ``--json`` takes a file."""
    parser.add_argument("--quiet", action="store_true", help=QUIET)


def add_force(parser: argparse.ArgumentParser) -> None:
    """``--force``, for a command that writes a file of the user's choice."""
    parser.add_argument("--force", action="store_true", help="replace a file that exists")


def check_free(option: str, path: str | os.PathLike[str], read: Iterable[str], force: bool) -> None:
    """That ``path`` is none of the files that the command reads, and is new unless ``force``.

    Pipes and devices may be written to: they keep nothing.

    Raises:
        ArgumentError: if it is one of them, or exists.
    """
    file = Path(path)
    if not file.is_file():
        return
    new = file.with_stem(f"{file.stem}_new")
    if any(os.path.exists(other) and os.path.samefile(file, other) for other in read):
        msg = f"{option} {str(file)!r} is a file that this command reads.\n"
        raise ArgumentError(f"{msg}Hint: {option} {new}")
    if not force:
        msg = f"{option} {str(file)!r} exists, and would be replaced.\n"
        raise ArgumentError(f"{msg}Hint: {option} {new}, or --force")
