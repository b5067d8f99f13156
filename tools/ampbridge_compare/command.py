"""The command ``ampbridge compare``.

The table goes to standard output; a page, a picture and the data to files. With ``--json`` alone the
data take the table's place, and no file is written.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampbridge import workloads
from ampbridge.adapters import registry
from ampbridge.checkpoints import atomic_files
from ampbridge.cli.options import Commands, add_force, add_quiet, check_free
from ampbridge.errors import ArgumentError, BackendLoadError, listed
from ampbridge.errors.foreign_text import printable
from ampbridge.workloads import NAMES, RECIPES

if TYPE_CHECKING:  # loaded by who compares, not by every command
    from ampbridge_compare.comparison import Comparison
    from ampbridge_compare.explore import Grid

BACKENDS = ("numpy", "torch", "tensorflow", "paddle", "jax")
OUTPUT = "comparison"
STDOUT = "-"

FILES = {"html": "comparison.html", "png": "comparison.png", "json": "comparison.json"}
EXPLORED = {"html": "explore.html"}


def add_to(commands: Commands) -> None:
    """Add ``compare`` to the commands of a parser."""
    says = "one recipe on several frameworks: a table, and a page with figures"
    parser = commands.add_parser("compare", help=says, description=says)
    add = parser.add_argument
    add("recipe", metavar="RECIPE", help=f"a recipe in TOML, or {', '.join(RECIPES)}")
    add(
        "--backends",
        help=f"backends, in this order (default: of {','.join(BACKENDS)} those that are installed)",
    )
    add(
        "--native", action="store_true", help="also run each framework's own AMP, without ampbridge"
    )
    add(
        "--explore",
        action="store_true",
        help="train at other levels, dtypes, loss scales and learning rates, for one page with controls",
    )
    add(
        "--workload",
        default=NAMES[0],
        metavar="NAME|FILE.py",
        help=f"{', '.join(NAMES)}, or a file with build(backend, seed) (default: %(default)s)",
    )
    add("--steps", type=int, help="training steps (default: 200; with --explore 60)")
    add("--seed", type=int, default=0, help="seed for weights and batches (default: %(default)s)")
    add(
        "--output",
        metavar="DIR",
        help=f"folder for the page, the picture and the data (default: {OUTPUT})",
    )
    add("--html", metavar="FILE", help="write the page to this file")
    add("--png", metavar="FILE", help="write the figures to this file, as one picture")
    add(
        "--json",
        nargs="?",
        const=STDOUT,
        metavar="FILE",
        help="write the data to this file; without FILE, print it instead of the table",
    )
    add_force(parser)
    add_quiet(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    recipe, files = workloads.recipe(options.recipe), _files(options)
    settings = {name: getattr(options, name) for name in ("workload", "seed", "quiet")}
    if options.steps is not None:
        settings["steps"] = options.steps
    (_check_explored if options.explore else _check_drawn)(options, files)
    backends, missing = _backends(options)
    result: Comparison | Grid
    if options.explore:
        from ampbridge_compare.explore import explore

        result = explore(recipe, backends, absent=missing, **settings)
        failed = len({run.backend for run in result.runs}) < len(backends)
    else:
        from ampbridge_compare import compare

        result = compare(recipe, backends, native=options.native, **settings)
        failed = bool(result.failed)
    writers = EXPLORE_WRITERS if options.explore else WRITERS
    for kind, path in files.items():
        _save(path, partial(writers[kind], result))
    if options.json == STDOUT:
        print(json.dumps(result.to_dict()))
    else:
        result.print(sys.stdout)
        if files and not options.quiet:
            written = ", ".join(map(str, files.values()))
            print(printable(f"Written: {written}"), file=sys.stderr)
    return int(failed)


def _backends(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Those that were asked for, or else those of ``BACKENDS`` that are installed, and the others."""
    if options.backends:
        return options.backends.split(","), []
    status = registry.backends()
    missing = [name for name in BACKENDS if status[name] == "not installed"]
    if missing and not options.quiet:
        print(f"Not installed, and left out: {', '.join(missing)}", file=sys.stderr)
    return [name for name in BACKENDS if name not in missing], missing


def _files(options: argparse.Namespace) -> dict[str, Path]:
    """What is to be written where.

    Raises:
        ArgumentError: for a file in a directory that does not exist, or that would be replaced.
    """
    single = {kind: getattr(options, kind) for kind in FILES}
    named = {kind: Path(path) for kind, path in single.items() if path not in (None, STDOUT)}
    for kind, path in named.items():
        if not path.parent.is_dir():
            msg = f"There is no directory {str(path.parent)!r}.\n"
            raise ArgumentError(msg + f"Hint: --{kind} {path.name}, or mkdir -p {path.parent}")
        check_free(f"--{kind}", path, [options.recipe, options.workload], options.force)
    if options.output is None and (named or options.json == STDOUT):
        return named
    folder = Path(options.output or OUTPUT)
    if folder.exists() and not folder.is_dir():
        msg = f"--output is a directory, and {str(folder)!r} is a file.\n"
        raise ArgumentError(msg + "Hint: --output comparison")
    files = EXPLORED if options.explore else FILES
    return {kind: folder / name for kind, name in files.items()} | named


def _check_explored(options: argparse.Namespace, _: dict[str, Path]) -> None:
    for name in ("native", "png"):
        if getattr(options, name):
            msg = f"--explore trains by the recipe alone and draws on its page: --{name} has no effect.\n"
            raise ArgumentError(msg + f"Hint: leave --{name} out, or compare without --explore")


def _check_drawn(_: argparse.Namespace, files: dict[str, Path]) -> None:
    """Before anything runs: figures need matplotlib."""
    drawn = [f"--{kind}" for kind in files if kind != "json"]
    if drawn and find_spec("matplotlib") is None:
        msg = f"{listed(drawn)} has figures, which matplotlib draws, and it is not installed.\n"
        raise BackendLoadError(msg + "Hint: pip install 'ampbridge[report]', or --json alone")


def _save(path: Path, written: Callable[[], bytes]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write(path, written())
    except OSError as error:
        msg = f"Cannot write {str(path)!r}: {error.strerror or error}.\n"
        raise ArgumentError(msg + "Hint: --output in a directory that can be written.") from error


def _html(comparison: Comparison) -> bytes:
    from ampbridge_compare.page import page

    return page(comparison).encode()


def _png(comparison: Comparison) -> bytes:
    from ampbridge_compare.pictures import png

    return png(comparison)


def _json(comparison: Comparison) -> bytes:
    return (json.dumps(comparison.to_dict(), indent=1) + "\n").encode()


def _explored_html(grid: Grid) -> bytes:
    from ampbridge_compare.explore_page import page

    return page(grid).encode()


def _explored_json(grid: Grid) -> bytes:
    return (json.dumps(grid.to_dict(), separators=(",", ":")) + "\n").encode()


Writers = Mapping[str, Callable[[Any], bytes]]
WRITERS: Writers = {"html": _html, "png": _png, "json": _json}
EXPLORE_WRITERS: Writers = {"html": _explored_html, "json": _explored_json}
