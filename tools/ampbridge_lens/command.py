"""The command ``ampbridge lens``: ``census``, ``ranges``, ``locate``, ``bisect``, ``worth``, ``record``
and ``align``.

Reports go to standard output, progress to standard error. What they are about is a workload: one of
those that come with ampbridge, or a Python file with ``build(backend, seed)``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import ampbridge_lens as lens
from ampbridge import workloads
from ampbridge.cli.options import Commands, add_force, check_free
from ampbridge.errors import AmpBridgeError, ArgumentError
from ampbridge.reports.printing import TabularReport
from ampbridge.reports.progress import Report, reported
from ampbridge.workloads import NAMES, Workload
from ampbridge.workloads.processes import environment

EXIT_CODES = (
    "Exit code: 0; 1 if locate finds a problem, or align a difference, or for an error; 2 for invalid "
    "arguments."
)


def _scale(text: str) -> float:
    """A number, or a power of two as the lens writes it: ``2^16``."""
    base, power, exponent = text.replace("**", "^").partition("^")
    if not power:
        return float(text)
    if base != "2" or abs(int(exponent)) > 1000:
        raise ValueError(text)  # argparse says what was passed
    return 2.0 ** int(exponent)


def _count(text: str) -> int:
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


_scale.__name__, _count.__name__ = "scale", "number"  # as argparse calls them in its messages

OPTIONS: dict[str, dict[str, Any]] = {
    "policy": {
        "default": "O1",
        "help": "O1, O2:bfloat16, or a framework's own spelling (default: %(default)s)",
    },
    "policy-b": {"metavar": "POLICY", "help": "of B (default: that of A)"},
    "policies": {"default": "O0,O1,O2", "help": "(default: %(default)s)"},
    "scale": {
        "type": _scale,
        "default": "2^16",
        "help": "the loss scale: 1024, 2^10 (default: %(default)s)",
    },
    "passes": {
        "type": _count,
        "default": 5,
        "metavar": "N",
        "help": "time the ops in N forward passes (default: %(default)s)",
    },
    "batches": {
        "type": _count,
        "default": 1,
        "metavar": "N",
        "help": "use the first N (default: %(default)s)",
    },
    "tolerance": {
        "type": float,
        "default": 1e-2,
        "help": "relative to float32's loss and gradients (default: %(default)s)",
    },
    "steps": {"type": int, "default": 5, "help": "steps in a turn (default: %(default)s)"},
    "rounds": {"type": int, "default": 20, "help": "turns of each policy (default: %(default)s)"},
    "backend": {"default": "numpy", "help": "(default: %(default)s)"},
    "backends": {
        "nargs": 2,
        "required": True,
        "metavar": ("A", "B"),
        "help": "two, each in its own process",
    },
    "output": {"required": True, "metavar": "FILE.npz", "help": "the file"},
    "all": {"action": "store_true", "help": "all rows of a long report"},
    "seed": {"type": int, "default": 0, "help": "for build (default: %(default)s)"},
    "json": {"action": "store_true", "help": "print the result as JSON"},
    "quiet": {"action": "store_true", "help": "no progress bar"},
}

KINDS = {
    "census": ("each op: layer, calls, dtype, rule", "backend policy passes all"),
    "ranges": (
        "ranges of values and gradients in float16; safe scales",
        "backend policy scale all",
    ),
    "locate": ("where inf or NaN begins, and a cure", "backend policy scale"),
    "bisect": (
        "a minimal set of ops and layers to keep in float32",
        "backend policy scale batches tolerance",
    ),
    "worth": (
        "time and memory of a step under each policy, in turns",
        "backend policies steps rounds",
    ),
    "record": ("all values and gradients of a pass, to a file", "backend policy output"),
    "align": ("the first op that differs between two backends", "backends policy policy-b"),
}
"""Each command of the lens: what it shows, and its options."""


def add_to(commands: Commands) -> None:
    """Add ``lens`` to the commands of a parser."""
    says = "effects of mixed precision on a model: ops, ranges, overflows, deny lists, time"
    parser = commands.add_parser("lens", help=says, description=says, epilog=EXIT_CODES)
    kinds = parser.add_subparsers(title="commands", required=True)
    for kind, (says, options) in KINDS.items():
        parser = kinds.add_parser(kind, help=says, description=says, epilog=EXIT_CODES)
        parser.add_argument(
            "workload",
            metavar="FILE.py|NAME",
            help=f"a file with build(backend, seed), or {', '.join(NAMES)}",
        )
        for option in ("seed", "json", "quiet", *options.split()):
            parser.add_argument(f"--{option}", **OPTIONS[option])
        if kind == "record":
            add_force(parser)
        parser.set_defaults(run=_run_align if kind == "align" else _run, kind=kind)


def _run(options: argparse.Namespace) -> int:
    with reported(not options.quiet) as progress:
        progress(0, 1, f"building {options.workload}")
        workload = workloads.find(options.workload)(options.backend, options.seed)
        progress(0, 1, options.kind)
        report = _look(options, workload, progress)
    _print(report, options)
    return int(options.kind == "locate" and bool(report))


def _print(report: TabularReport, options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps(report.to_dict()))
    elif getattr(options, "all", False):
        report.table().print(sys.stdout)
    else:
        report.print(sys.stdout)


def _look(options: argparse.Namespace, workload: Workload, progress: Report) -> TabularReport:
    """The report that a command asks for. ``progress`` is told of those that take many passes."""
    loss_fn, model, first = workload.loss_fn, workload.model, workload.batches[0]
    if options.kind == "census":
        return lens.census(loss_fn, model, *first, policy=options.policy, passes=options.passes)
    if options.kind == "ranges":
        return lens.ranges(loss_fn, model, *first, policy=options.policy, scale=options.scale)
    if options.kind == "locate":
        return lens.locate(loss_fn, model, *first, policy=options.policy, scale=options.scale)
    if options.kind == "record":
        check_free("--output", options.output, [options.workload], options.force)
        recording = lens.record(loss_fn, model, *first, policy=options.policy)
        recording.save(options.output)
        return recording
    if options.kind == "bisect":
        if options.batches > len(workload.batches):
            number = len(workload.batches)
            msg = f"Passed --batches {options.batches}; {options.workload} has {number}.\n"
            raise ArgumentError(msg + f"Hint: --batches {number}")
        return lens.bisect(
            loss_fn,
            model,
            workload.batches[: options.batches],
            options.policy,
            scale=options.scale,
            tolerance=options.tolerance,
            progress=progress,
        )

    build = workloads.find(options.workload)

    def make() -> tuple[Any, Any]:
        new = build(options.backend, options.seed)
        return new.model, new.optimizer

    return lens.worth_it(
        loss_fn,
        make,
        *first,
        policies=options.policies.split(","),
        steps=options.steps,
        rounds=options.rounds,
        progress=progress,
    )


def _run_align(options: argparse.Namespace) -> int:
    """Each side is recorded by ``ampbridge lens record``: two frameworks in a process can crash it."""
    policies = options.policy, options.policy_b or options.policy
    with TemporaryDirectory(prefix="ampbridge-align-") as folder:
        files = [f"{folder}/a.npz", f"{folder}/b.npz"]
        with reported(not options.quiet) as progress, ThreadPoolExecutor(2) as pool:
            progress(0, 1, f"recording {' and '.join(options.backends)}")
            list(pool.map(partial(_recorded, options), options.backends, policies, files))
        report = lens.align(*map(lens.Recording.load, files))
    _print(report, options)
    return int(bool(report))


def _recorded(options: argparse.Namespace, backend: str, policy: str, file: str) -> None:
    command = ["-m", "ampbridge", "lens", "record", options.workload, "--backend", backend]
    command += ["--policy", policy, "--seed", str(options.seed), "--output", file, "--quiet"]
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env=environment(2),
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()[-2:] or ["it said nothing"]
        message = "\n".join(said)
        if not said[-1].startswith("Hint:"):
            message += f"\nHint: ampbridge doctor --framework {backend}"
        raise AmpBridgeError(f"{backend} was not recorded: {message}")
