"""The command line: ``ampbridge doctor``, ``lists`` and ``completion``, and the commands of the tools.

A tool names its commands in the entry points ``ampbridge.commands``, each with a function that adds it.

Results go to standard output, as a table or with ``--json`` as data. Progress, findings and warnings
go to standard error, unless ``--quiet``. The exit code is 0 for success, 1 for an error or a failure,
2 for invalid arguments; a command may have further codes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import entry_points
from importlib.util import find_spec

import ampbridge
from ampbridge.adapters import registry
from ampbridge.cli import completion as completion_command
from ampbridge.cli import lists as lists_command
from ampbridge.cli.options import EXIT_CODES, Commands, add_output
from ampbridge.errors import AmpBridgeError
from ampbridge.errors.foreign_text import printable
from ampbridge.reports.diagnosis import FrameworkReport, Report, inspect, not_probed
from ampbridge.reports.progress import reported

COMMANDS = "ampbridge.commands"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _parser(*arguments[:1]).parse_args(arguments)
    try:
        with warnings.catch_warnings():
            if getattr(options, "quiet", False):
                warnings.simplefilter("ignore")
            exit_code: int = options.run(options)
        sys.stdout.flush()
    except AmpBridgeError as error:
        print(printable(f"{type(error).__name__}: {error}"), file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever reads has seen enough, as ``head`` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to flush
        return 1
    return exit_code


def _parser(first: str | None = None) -> argparse.ArgumentParser:
    """Of all commands; without those of tools, if the first argument is another one."""
    parser = argparse.ArgumentParser(
        prog="ampbridge", description=ampbridge.__doc__, epilog=EXIT_CODES
    )
    parser.add_argument("--version", action="version", version=f"ampbridge {ampbridge.__version__}")
    commands = parser.add_subparsers(title="commands", required=True)

    doctor = commands.add_parser(
        "doctor", help="frameworks, devices, and which 16-bit dtypes work on them"
    )
    doctor.add_argument("--framework", help="only this one")
    add_output(doctor)
    doctor.set_defaults(run=_doctor)

    lists_command.add_to(commands)
    if first not in commands.choices:
        _add_tools(commands, first)
    completion_command.add_to(commands, parser)
    return parser


def _add_tools(commands: Commands, first: str | None) -> None:
    """The commands of the tools, or only the one that is asked for: each loads its tool.

    A tool that was deleted from a checkout has none.
    """
    points = {
        point.name: point
        for point in entry_points(group=COMMANDS)
        if find_spec(point.module.partition(".")[0]) is not None
    }
    for name in [first] if first in points else sorted(points):
        points[name].load()(commands)


def _doctor(options: argparse.Namespace) -> int:
    if options.framework is None:
        reports = _inspect_all(registry.backend_names(), options.quiet)
    else:
        reports = [inspect(options.framework)]
    report = Report(tuple(reports))
    if options.json:
        print(json.dumps(report.to_dict()))
    else:
        report.print(sys.stdout)
    return int(any(framework.status == "failed" for framework in reports))


def _inspect_all(names: Sequence[str], quiet: bool) -> list[FrameworkReport]:
    reports = {}
    with (
        reported(not quiet) as progress,
        ThreadPoolExecutor() as pool,
    ):  # each waits for its process
        asked = {pool.submit(_inspect_in_another_process, name): name for name in names}
        progress(0, len(names), ", ".join(names))
        for done, answer in enumerate(as_completed(asked), start=1):
            reports[asked[answer]] = answer.result()
            missing = [name for name in names if name not in reports]
            progress(done, len(names), ", ".join(missing))
    return [reports[name] for name in names]


def _inspect_in_another_process(name: str) -> FrameworkReport:
    """Two frameworks in one process can crash it, and their start-up notes would stand in the table."""
    if registry.backends()[name] == "not installed":
        return not_probed(name, "not installed", f"pip install 'ampbridge[{name}]'")
    command = [sys.executable, "-m", "ampbridge", "doctor", "--framework", name, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return not_probed(name, "failed", f"exit code {done.returncode}: {last}")
    (report,) = json.loads(done.stdout.splitlines()[-1])["frameworks"]
    return FrameworkReport.from_dict(report)
