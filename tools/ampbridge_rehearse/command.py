"""The command ``python -m ampbridge_rehearse``.

The exit code is 0 if the script ended or had its steps, the script's own if it ended with another,
1 if it failed or cannot be rehearsed, 2 for arguments that cannot be read.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ampbridge.errors import AmpBridgeError, ArgumentError, UnsupportedError

STEPS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Rehearse a script, and print the report."""
    own, of_script = _divided(sys.argv[1:] if arguments is None else list(arguments))
    options = _parser().parse_args(own)
    try:
        return _rehearse(_script(options.script), options.steps, of_script)
    except AmpBridgeError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1


def _divided(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Our arguments, and what follows ``--``."""
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ampbridge_rehearse",
        description="Run a CUDA training script on a machine without a GPU for a few steps, and say "
        "what ran in which dtype, what the loss scale did, and where the host waited.",
        epilog="What follows -- is the script's: rehearse train.py --steps 3 -- --lr 0.1",
    )
    parser.add_argument("script", help="a Python file; it is executed, unchanged")
    parser.add_argument(
        "--steps",
        type=_count,
        default=STEPS,
        metavar="N",
        help="end it after N optimizer steps, skipped ones included (default: %(default)s)",
    )
    return parser


def _count(text: str) -> int:
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


_count.__name__ = "number"  # as argparse calls it in its messages


def _script(name: str) -> Path:
    path = Path(name)
    if not path.is_file():
        msg = f"There is no script {name!r}.\n"
        raise ArgumentError(msg + "Hint: python -m ampbridge_rehearse path/to/train.py")
    return path


def _rehearse(script: Path, steps: int, arguments: list[str]) -> int:
    ranks = os.environ.get("WORLD_SIZE", "1")
    if ranks != "1":
        msg = f"WORLD_SIZE is {ranks}: a rehearsal is of one process and one device.\n"
        raise UnsupportedError(
            msg + "Hint: unset WORLD_SIZE, and start the script without torchrun"
        )
    from ampbridge_rehearse import virtual_cuda

    virtual_cuda.install()

    from ampbridge_rehearse.running import run  # imports torch, which the device precedes

    report, exit_code = run(script, arguments, steps)
    sys.stdout.flush()
    print(f"\n{report}", flush=True)
    return exit_code
