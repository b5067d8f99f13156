"""The command ``ampbridge completion``: a script that lets a shell complete the command line.

    eval "$(ampbridge completion bash)"

Options, commands and what they may be come from the parser itself, by shtab.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from ampbridge.adapters import registry
from ampbridge.cli.options import Commands
from ampbridge.errors import BackendLoadError
from ampbridge.reports.lists import FRAMEWORKS

SHELLS = ("bash", "zsh", "tcsh")
POLICIES = ("O0", "O1", "O2")  # bash ends a word at the colon of "O1:bfloat16"

FILES = ("FILE", "RECIPE")  # of a metavar: what is written there is a path


def add_to(commands: Commands, whole: argparse.ArgumentParser) -> None:
    """Add ``completion`` to the commands of the parser ``whole``."""
    says = 'a script for a shell: eval "$(ampbridge completion bash)"'
    parser = commands.add_parser("completion", help=says, description=says)
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(run=partial(_run, whole))


def _run(whole: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError as error:
        msg = "Completions are written by shtab, which is not installed.\n"
        raise BackendLoadError(msg + "Hint: pip install 'ampbridge[completion]'") from error
    for action in _actions(whole):
        _describe(action, shtab)
    sys.stdout.write(shtab.complete(whole, shell=options.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Those of a parser and of the commands below it."""
    for action in parser._actions:  # argparse tells in no public way
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)


def _describe(action: argparse.Action, shtab: Any) -> None:
    """What may stand where ``action`` takes a value: words that its command names, known ones, or a path."""
    words = getattr(action, "words", None) or _words().get(action.dest)
    if action.choices is None and words:
        action.choices = words
    elif isinstance(action.metavar, str):
        if any(part in action.metavar for part in FILES):
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab's own attribute
        elif action.metavar == "DIR":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]


def _words() -> dict[str, list[str]]:
    """Values by the names of arguments. The parser does not insist on them: others may do, too."""
    backends = registry.backend_names()
    return {
        "backend": backends,
        "framework": backends,
        "policy": list(POLICIES),
        "source": list(FRAMEWORKS),
        "target": list(FRAMEWORKS),
    }
