"""The command line: ``ampbridge demo``, ``doctor``, ``explain``, ``lists``, ``port``, ``lens``,
``compare``.

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
from typing import TYPE_CHECKING

import ampbridge
from ampbridge import workloads
from ampbridge.adapters import registry
from ampbridge.cli import compare as compare_command
from ampbridge.cli import completion as completion_command
from ampbridge.cli import demo as demo_command
from ampbridge.cli import lens as lens_command
from ampbridge.cli import lists as lists_command
from ampbridge.cli import port as port_command
from ampbridge.cli.options import EXIT_CODES, add_output
from ampbridge.errors import AmpBridgeError
from ampbridge.errors.foreign_text import printable
from ampbridge.policies.policy import Policy
from ampbridge.reports.diagnosis import FrameworkReport, Report, inspect, not_probed
from ampbridge.reports.explain import ExplanationTable, explain
from ampbridge.workloads import NAMES

if TYPE_CHECKING:
    from ampbridge.lens.explained import ModelExplanation


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    options = _parser().parse_args(arguments)
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ampbridge", description=ampbridge.__doc__, epilog=EXIT_CODES
    )
    parser.add_argument("--version", action="version", version=f"ampbridge {ampbridge.__version__}")
    commands = parser.add_subparsers(title="commands", required=True)

    demo_command.add_to(commands)

    doctor = commands.add_parser(
        "doctor", help="frameworks, devices, and which 16-bit dtypes work on them"
    )
    doctor.add_argument("--framework", help="only this one")
    add_output(doctor)
    doctor.set_defaults(run=_doctor)

    explained = commands.add_parser("explain", help="what a backend does with a policy, op by op")
    explained.add_argument("policy", help="O1, O2:bfloat16, or a framework's own spelling")
    explained.add_argument("backend", help="torch, tensorflow, paddle or numpy")
    explained.add_argument(
        "workload",
        nargs="?",
        metavar="FILE.py|NAME",
        help=f"only the ops of this model: a file with build(backend, seed), or {', '.join(NAMES)}",
    )
    explained.add_argument("--ops", help="only these: softmax,matmul")
    add_output(explained)
    explained.set_defaults(run=_explain)

    lists_command.add_to(commands)
    port_command.add_to(commands)
    lens_command.add_to(commands)
    compare_command.add_to(commands)
    completion_command.add_to(commands, parser)
    return parser


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
    from ampbridge.lens.progress import reported  # by who waits, not by every command

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


def _explained(options: argparse.Namespace) -> ExplanationTable | ModelExplanation:
    if options.workload is None:
        return explain(options.policy, options.backend)
    from ampbridge.lens.explained import of_pass  # by who asks for a model's ops

    workload = workloads.find(options.workload)(options.backend, 0)
    policy = Policy.parse(options.policy)
    return of_pass(policy, workload.loss_fn, workload.model, *workload.batches[0])


def _explain(options: argparse.Namespace) -> int:
    table = _explained(options)
    if options.ops is not None:
        table = table.only(options.ops.split(","))
    if options.json:
        print(json.dumps(table.to_dict()))
    else:
        table.print(sys.stdout)
    return 0
