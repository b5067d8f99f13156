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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from ampbridge import workloads
from ampbridge.cli.options import Commands, add_force, check_free
from ampbridge.errors import AmpBridgeError, ArgumentError
from ampbridge.reports.printing import TabularReport
from ampbridge.workloads import NAMES, Workload
from ampbridge.workloads.processes import environment

EXIT_CODES = (
    "Exit code: 0; 1 if locate finds a problem, or align a difference, or for an error; 2 for invalid "
    "arguments."
)


Progress = Callable[[int, int, str], None]
Look = Callable[[argparse.Namespace, Workload, Progress], TabularReport]


def add_to(commands: Commands) -> None:
    """Add ``lens`` to the commands of a parser."""
    says = "effects of mixed precision on a model: ops, ranges, overflows, deny lists, time"
    lens = commands.add_parser("lens", help=says, description=says, epilog=EXIT_CODES)
    kinds = lens.add_subparsers(title="commands", required=True)

    census = _add(kinds, "census", "each op: layer, calls, dtype, rule", _census)
    _add_policy(census)
    census.add_argument(
        "--passes",
        type=_count,
        default=5,
        metavar="N",
        help="time the ops in N forward passes (default: %(default)s)",
    )
    _add_all(census)

    ranges = _add(
        kinds, "ranges", "ranges of values and gradients in float16; safe scales", _ranges
    )
    _add_policy(ranges)
    _add_scale(ranges)
    _add_all(ranges)

    locate = _add(kinds, "locate", "where inf or NaN begins, and a cure", _locate)
    _add_policy(locate)
    _add_scale(locate)

    bisect = _add(kinds, "bisect", "a minimal set of ops and layers to keep in float32", _bisect)
    _add_policy(bisect)
    _add_scale(bisect)
    bisect.add_argument(
        "--batches",
        type=_count,
        default=1,
        metavar="N",
        help="use the first N (default: %(default)s)",
    )
    bisect.add_argument(
        "--tolerance",
        type=float,
        default=1e-2,
        help="relative to float32's loss and gradients (default: %(default)s)",
    )

    worth = _add(kinds, "worth", "time and memory of a step under each policy, in turns", _worth)
    worth.add_argument("--policies", default="O0,O1,O2", help="(default: %(default)s)")
    worth.add_argument(
        "--steps", type=int, default=5, help="steps in a turn (default: %(default)s)"
    )
    worth.add_argument(
        "--rounds", type=int, default=20, help="turns of each policy (default: %(default)s)"
    )

    recording = _add(kinds, "record", "all values and gradients of a pass, to a file", _record)
    _add_policy(recording)
    recording.add_argument("--output", required=True, metavar="FILE.npz", help="the file")
    add_force(recording)

    align = _command(kinds, "align", "the first op that differs between two backends")
    align.add_argument(
        "--backends",
        nargs=2,
        required=True,
        metavar=("A", "B"),
        help="two, each in its own process",
    )
    _add_policy(align)
    align.add_argument("--policy-b", metavar="POLICY", help="of B (default: that of A)")
    align.set_defaults(run=_run_align)


def _add(kinds: Commands, name: str, says: str, look: Look) -> argparse.ArgumentParser:
    parser = _command(kinds, name, says)
    parser.add_argument("--backend", default="numpy", help="(default: %(default)s)")
    parser.set_defaults(run=_run, look=look, kind=name)
    return parser


def _command(kinds: Commands, name: str, says: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(
        name, help=says, description=says, epilog=EXIT_CODES
    )
    parser.add_argument(
        "workload",
        metavar="FILE.py|NAME",
        help=f"a file with build(backend, seed), or {', '.join(NAMES)}",
    )
    parser.add_argument("--seed", type=int, default=0, help="for build (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser


def _add_policy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--policy",
        default="O1",
        help="O1, O2:bfloat16, or a framework's own spelling (default: %(default)s)",
    )


def _add_scale(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scale",
        type=_scale,
        default="2^16",
        help="the loss scale: 1024, 2^10 (default: %(default)s)",
    )


def _add_all(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="all rows of a long report")


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


def _run(options: argparse.Namespace) -> int:
    from ampbridge.reports.progress import reported  # by who looks, not by every command

    with reported(not options.quiet) as progress:
        progress(0, 1, f"building {options.workload}")
        workload = workloads.find(options.workload)(options.backend, options.seed)
        progress(0, 1, options.kind)
        report = options.look(options, workload, progress)
    _print(report, options)
    return int(options.kind == "locate" and bool(report))


def _print(report: TabularReport, options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps(report.to_dict()))
    elif getattr(options, "all", False):
        report.table().print(sys.stdout)
    else:
        report.print(sys.stdout)


def _run_align(options: argparse.Namespace) -> int:
    """Each side is recorded by ``ampbridge lens record``: two frameworks in a process can crash it."""
    from ampbridge.reports.progress import reported
    from ampbridge_lens import Recording, align

    policies = options.policy, options.policy_b or options.policy
    with TemporaryDirectory(prefix="ampbridge-align-") as folder:
        files = [f"{folder}/a.npz", f"{folder}/b.npz"]
        with reported(not options.quiet) as progress, ThreadPoolExecutor(2) as pool:
            progress(0, 1, f"recording {' and '.join(options.backends)}")
            list(pool.map(partial(_recorded, options), options.backends, policies, files))
        report = align(*map(Recording.load, files))
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


# Each shows the bar that ``progress`` moves, or leaves it as it is where a few passes are all.


def _census(options: argparse.Namespace, workload: Workload, progress: Progress) -> TabularReport:
    del progress
    from ampbridge_lens import census

    first = workload.batches[0]
    chosen = {"policy": options.policy, "passes": options.passes}
    return census(workload.loss_fn, workload.model, *first, **chosen)


def _ranges(options: argparse.Namespace, workload: Workload, progress: Progress) -> TabularReport:
    del progress
    from ampbridge_lens import ranges

    first, chosen = workload.batches[0], {"policy": options.policy, "scale": options.scale}
    return ranges(workload.loss_fn, workload.model, *first, **chosen)


def _locate(options: argparse.Namespace, workload: Workload, progress: Progress) -> TabularReport:
    del progress
    from ampbridge_lens import locate

    first, chosen = workload.batches[0], {"policy": options.policy, "scale": options.scale}
    return locate(workload.loss_fn, workload.model, *first, **chosen)


def _bisect(options: argparse.Namespace, workload: Workload, progress: Progress) -> TabularReport:
    from ampbridge_lens import bisect

    if options.batches > len(workload.batches):
        msg = (
            f"Passed --batches {options.batches}; {options.workload} has {len(workload.batches)}.\n"
        )
        raise ArgumentError(msg + f"Hint: --batches {len(workload.batches)}")
    return bisect(
        workload.loss_fn,
        workload.model,
        workload.batches[: options.batches],
        options.policy,
        scale=options.scale,
        tolerance=options.tolerance,
        progress=progress,
    )


def _worth(options: argparse.Namespace, workload: Workload, progress: Progress) -> TabularReport:
    from ampbridge_lens import worth_it

    build = workloads.find(options.workload)

    def make() -> tuple[Any, Any]:
        new = build(options.backend, options.seed)
        return new.model, new.optimizer

    return worth_it(
        workload.loss_fn,
        make,
        *workload.batches[0],
        policies=options.policies.split(","),
        steps=options.steps,
        rounds=options.rounds,
        progress=progress,
    )


def _record(options: argparse.Namespace, workload: Workload, progress: Progress) -> TabularReport:
    del progress
    from ampbridge_lens import record

    check_free("--output", options.output, [options.workload], options.force)
    first = workload.batches[0]
    recording = record(workload.loss_fn, workload.model, *first, policy=options.policy)
    recording.save(options.output)
    return recording
