"""The command ``ampbridge compare``.

The table goes to standard output; a page, a picture and the data to files. With ``--json`` alone the
data take the table's place, and no file is written.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ampbridge import workloads
from ampbridge.adapters import registry
from ampbridge.checkpoints import atomic_files
from ampbridge.cli.options import Commands, add_force, add_quiet, check_free
from ampbridge.errors import ArgumentError, BackendLoadError, listed
from ampbridge.errors.foreign_text import printable
from ampbridge.workloads import NAMES, RECIPES

if TYPE_CHECKING:  # loaded by who compares, not by every command
    from ampbridge_compare.comparison import Comparison

BACKENDS = ("numpy", "torch", "tensorflow", "paddle", "jax")
OUTPUT = "comparison"
STDOUT = "-"

FILES = {"html": "comparison.html", "png": "comparison.png", "json": "comparison.json"}


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
        "--workload",
        default=NAMES[0],
        metavar="NAME|FILE.py",
        help=f"{', '.join(NAMES)}, or a file with build(backend, seed) (default: %(default)s)",
    )
    add("--steps", type=int, default=200, help="training steps (default: %(default)s)")
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
    recipe = workloads.recipe(options.recipe)
    files = _files(options)
    _check_drawn(files)

    from ampbridge_compare import compare

    backends = options.backends.split(",") if options.backends else _installed(options.quiet)
    comparison = compare(
        recipe,
        backends,
        workload=options.workload,
        steps=options.steps,
        seed=options.seed,
        native=options.native,
        quiet=options.quiet,
    )
    for kind, path in files.items():
        _save(comparison, kind, path)
    if options.json == STDOUT:
        print(json.dumps(comparison.to_dict()))
    else:
        comparison.print(sys.stdout)
        if files and not options.quiet:
            written = ", ".join(map(str, files.values()))
            print(printable(f"Written: {written}"), file=sys.stderr)
    return int(bool(comparison.failed))


def _installed(quiet: bool) -> list[str]:
    """Those of ``BACKENDS`` whose framework is there; names the others on standard error."""
    status = registry.backends()
    missing = [name for name in BACKENDS if status[name] == "not installed"]
    if missing and not quiet:
        print(f"Not installed, and left out: {', '.join(missing)}", file=sys.stderr)
    return [name for name in BACKENDS if name not in missing]


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
    return {kind: folder / name for kind, name in FILES.items()} | named


def _check_drawn(files: dict[str, Path]) -> None:
    """Before anything runs: figures need matplotlib."""
    drawn = [f"--{kind}" for kind in files if kind != "json"]
    if drawn and find_spec("matplotlib") is None:
        msg = f"Figures ({listed(drawn)}) are drawn by matplotlib, which is not installed.\n"
        raise BackendLoadError(msg + "Hint: pip install 'ampbridge[report]', or --json alone")


def _save(comparison: Comparison, kind: str, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        WRITERS[kind](comparison, path)
    except OSError as error:
        msg = f"Cannot write {str(path)!r}: {error.strerror or error}.\n"
        raise ArgumentError(msg + "Hint: --output in a directory that can be written.") from error


def _html(comparison: Comparison, path: Path) -> None:
    from ampbridge_compare.page import page

    atomic_files.write(path, page(comparison).encode())


def _png(comparison: Comparison, path: Path) -> None:
    from ampbridge_compare.pictures import png

    atomic_files.write(path, png(comparison))


def _json(comparison: Comparison, path: Path) -> None:
    text = json.dumps(comparison.to_dict(), indent=1) + "\n"
    atomic_files.write(path, text.encode())


WRITERS = {"html": _html, "png": _png, "json": _json}
