"""The command ``ampbridge demo``."""

from __future__ import annotations

import argparse
import json
import sys

from ampbridge.cli.options import Commands, add_output
from ampbridge_compare.demo import demo


def add_to(commands: Commands) -> None:
    """Add ``demo`` to the commands of a parser."""
    says = "train a small network in float32 and in mixed precision, beside each other"
    parser = commands.add_parser("demo", help=says, description=says)
    parser.add_argument(
        "--policy",
        default="O1",
        help="O1, O2:bfloat16, or a framework's own spelling (default: %(default)s)",
    )
    parser.add_argument("--backend", default="numpy", help="(default: %(default)s)")
    add_output(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    report = demo(options.policy, options.backend, quiet=options.quiet)
    if options.json:
        print(json.dumps(report.to_dict()))
    else:
        report.print(sys.stdout)
    return 0
