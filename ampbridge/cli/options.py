"""The output options and the exit codes that all commands share."""

from __future__ import annotations

import argparse
from typing import Any

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
