"""A script, run as Python runs it, until it has had its steps."""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from ampbridge.errors import AmpBridgeError
from ampbridge_rehearse import limits, virtual_cuda
from ampbridge_rehearse.report import Report
from ampbridge_rehearse.watching import EnoughSteps, Watch

INTERRUPTED = 130  # as a shell says it


def run(script: Path, arguments: list[str], steps: int) -> tuple[Report, int]:
    """Run ``script`` as ``__main__``; what was seen, and the exit code.

    What it raises is printed, as Python does.
    """
    watch = Watch(str(script.resolve().parent), steps)
    with limits.kept() as replaced, watch.open(), _as_main(script, arguments):
        ended, exit_code = _executed(script)
    report = Report(
        script=script.name,
        ended=ended,
        steps=tuple(watch.steps),
        rest=watch.window,
        scale=watch.scale,
        peak_memory=virtual_cuda.peak_memory(),
        replaced=(*replaced, *limits.settings()),
    )
    return report, exit_code


def _executed(script: Path) -> tuple[str, int]:
    """How the script ended, and its exit code."""
    try:
        runpy.run_path(str(script), run_name="__main__")
    except EnoughSteps:
        return "ended by --steps", 0
    except SystemExit as error:
        code = _exit_code(error)
        return (
            "the script ended" if code == 0 else f"the script ended with exit code {code}"
        ), code
    except KeyboardInterrupt:
        return "interrupted", INTERRUPTED
    except BaseException as error:
        _print_failure(error, script)
        return f"FAILED with {type(error).__name__}", 1
    return "the script ended", 0


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


@contextmanager
def _as_main(script: Path, arguments: list[str]) -> Iterator[None]:
    """``sys.argv`` and ``sys.path`` as ``python script arguments`` has them."""
    argv, path = sys.argv, sys.path
    sys.argv = [str(script), *arguments]
    sys.path = [str(script.resolve().parent), *path]
    try:
        yield
    finally:
        sys.argv, sys.path = argv, path


def _print_failure(error: BaseException, script: Path) -> None:
    """The traceback from the script on; of our own errors, the script's line alone."""
    sys.stdout.flush()
    begin = _from_script(error.__traceback__, str(script))
    if isinstance(error, AmpBridgeError) and begin is not None:
        print(f"{script}, line {begin.tb_lineno}\n{type(error).__name__}: {error}", file=sys.stderr)
        return
    shown = traceback.TracebackException(type(error), error, begin)
    print("".join(shown.format()), end="", file=sys.stderr)
    hint = limits.hint(error)
    if hint is not None:
        print(f"Hint: {hint}", file=sys.stderr)


def _from_script(tb: TracebackType | None, script: str) -> TracebackType | None:
    while tb is not None and tb.tb_frame.f_code.co_filename != script:
        tb = tb.tb_next
    return tb
