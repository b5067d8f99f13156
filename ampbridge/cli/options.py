"""What the commands have in common: options for who reads their output, and exit codes."""

from __future__ import annotations

import argparse

EXIT_CODES = "Exit code: 0; 1 for an error or a failure; 2 for arguments that cannot be read."

QUIET = "nothing on standard error but errors: no progress, no warnings"


def add_output(parser: argparse.ArgumentParser) -> None:
    """``--json`` and ``--quiet``."""
    parser.add_argument("--json", action="store_true", help="as data")
    add_quiet(parser)


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """``--quiet`` alone, where ``--json`` takes a file."""
    parser.add_argument("--quiet", action="store_true", help=QUIET)
