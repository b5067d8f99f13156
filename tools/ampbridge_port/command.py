"""The command ``ampbridge port``: extracts AMP settings from files, and writes equivalent code.

The result goes to standard output or ``--out``. Findings and the fidelity report go to standard
error, unless ``--quiet``. With ``--json`` everything is one value on standard output.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampbridge.checkpoints import atomic_files
from ampbridge.cli.options import Commands, add_force, add_output, check_free
from ampbridge.errors import ArgumentError, RecipeError, SourceError, listed, slips
from ampbridge.errors.foreign_text import printable
from ampbridge.errors.slips import meant
from ampbridge.reports.printing import Table, print_text
from ampbridge.training.recipe import Recipe
from ampbridge.training.recipe_file import SECTIONS, unknown
from ampbridge_port.choosing import in_short
from ampbridge_port.writers import TARGETS

if TYPE_CHECKING:  # only this command loads readers and dialects
    from ampbridge_port import Outcome
    from ampbridge_port.ported import Ported, Wish

FAILED = 1
NOT_WHOLE = 3
"""The exit code of ``--strict`` if a setting is lost or unknown; argparse uses 2."""


def add_to(commands: Commands) -> None:
    """Add ``port`` to the commands of a parser."""
    says = "extract AMP settings from scripts and configurations; write them for another framework"
    parser = commands.add_parser("port", help=says, description=says)
    # fmt: off
    parser.add_argument(
        "files", nargs="+", metavar="FILE",
        help="Python, a notebook, JSON, YAML, or a recipe in TOML; a directory for all scripts below",
    )
    parser.add_argument(
        "-c", "--config", metavar="FILE",
        help="the configuration that the script is started with, JSON or YAML",
    )
    parser.add_argument(
        "-o", "--override", action="extend", nargs="+", default=[], metavar="KEY=VALUE",
        help="change the configuration, as the script's own command line does: AMP.use_amp=True",
    )
    target = parser.add_argument(
        "--to", metavar="TARGET",
        help=f"write a module to import from your own code: {', '.join(TARGETS)}",
    )
    target.words = list(TARGETS)  # for completion
    parser.add_argument(
        "--ampbridge", action="store_true",
        help="write code that uses ampbridge instead of native code",
    )
    parser.add_argument(
        "--demo", action="store_true",
        help="add a model, batches and a main() to the module, which then runs",
    )
    parser.add_argument(
        "--out", metavar="FILE", help="write the result to this file, as amp_tf.py to import",
    )
    add_force(parser)
    parser.add_argument(
        "--write", action="store_true",
        help="with --to ampbridge: change the scripts instead of printing a diff",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="fill in or change a value: scaler.init_scale=1024.0",
    )
    parser.add_argument(
        "--pick", type=int, metavar="N",
        help="choose the recipe with this number, if there are several",
    )
    parser.add_argument(
        "--strict", action="store_true",
        help=f"exit with {NOT_WHOLE} if a setting is lost or unknown",
    )
    # fmt: on
    add_output(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from ampbridge_port.ported import port

    several = len(options.files) > 1 or any(Path(file).is_dir() for file in options.files)
    wish = _wish(options, several)
    results = [port(outcome, wish) for outcome in _outcomes(options)]
    if not (options.write and any(result.needs_another for result in results)):
        results = [_stored(result, options) for result in results]
    elif several and not options.quiet:
        print("No file was changed: a scaler of one is used in another.", file=sys.stderr)
    if options.json:
        data = [result.to_dict() for result in results]
        print(json.dumps(data if several else data[0]))
    else:
        for result in results:
            _tell(result, options.quiet)
        if several:
            _show_several(results, options)
        else:
            _show(results[0], options)
    if any(result.error for result in results):
        return FAILED
    whole = all(result.is_whole for result in results)
    return NOT_WHOLE if options.strict and not whole else 0


# -- what is asked for


def _wish(options: argparse.Namespace, several: bool) -> Wish:
    """What the options ask for.

    Raises:
        ArgumentError: for options that cannot be, or not together.
    """
    from ampbridge_port.ported import Wish

    _check_target(options.to)
    _check_together(options)
    if several:
        _check_for_several(options)
    if options.out:
        read = [*options.files, *filter(None, [options.config])]
        check_free("--out", options.out, read, options.force)
    return Wish(
        options.to,
        not options.ampbridge,
        dict(map(_known, options.set)),
        options.pick,
        options.demo,
        options.config,
        tuple(options.override),
    )


def _check_target(target: str | None) -> None:
    if target is not None and target not in TARGETS:
        found = meant(target, TARGETS, slips.FRAMEWORKS)
        msg = f"Cannot write for {target!r}; allowed are {listed(TARGETS)}.\n"
        raise ArgumentError(
            f"{msg}Hint: {'ampbridge port --help' if found is None else f'--to {found}'}"
        )


def _check_together(options: argparse.Namespace) -> None:
    if options.ampbridge and options.to not in ("jax", "paddle", "tensorflow", "torch"):
        msg = "--ampbridge is a form of a framework's code.\n"
        raise ArgumentError(msg + "Hint: --to tensorflow --ampbridge")
    if options.demo and options.to in (None, "toml"):
        msg = "--demo is part of a module, and TOML is none.\n"
        raise ArgumentError(msg + "Hint: --to tensorflow --demo")
    if options.write and options.to != "ampbridge":
        msg = "--write changes scripts, as --to ampbridge does; other results are new files.\n"
        raise ArgumentError(msg + f"Hint: --to {options.to or 'toml'} --out FILE")
    if options.write and options.out:
        msg = "--write changes the script itself, --out leaves it as it is.\n"
        raise ArgumentError(msg + "Hint: leave one of them out.")


def _check_for_several(options: argparse.Namespace) -> None:
    if options.out:
        msg = "--out takes the result of one file, and there are several.\n"
        raise ArgumentError(msg + "Hint: ampbridge port train.py --out FILE")
    if options.config or options.override:
        msg = "A configuration is that of one script, and there are several files.\n"
        raise ArgumentError(msg + "Hint: ampbridge port train.py -c config.yml")
    if options.pick is not None:
        msg = "--pick chooses one of one file's recipes, and there are several files.\n"
        raise ArgumentError(msg + f"Hint: ampbridge port train.py --pick {options.pick}")
    if options.to not in (None, "ampbridge"):
        msg = f"--to {options.to} writes a module for one file, and there are several.\n"
        raise ArgumentError(msg + f"Hint: ampbridge port train.py --to {options.to}")


def _known(text: str) -> tuple[str, Any]:
    """``scaler.init_scale=1024.0`` as a key of a recipe file and a value of TOML, or else text."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    key, equals, value = (part.strip() for part in text.partition("="))
    section, _, name = key.partition(".")
    if not equals or not value:
        msg = f"Cannot read --set {text!r}.\nHint: --set scaler.init_scale=1024.0"
        raise ArgumentError(msg)
    if section not in SECTIONS or name not in SECTIONS[section]:
        keys = [f"{section}.{name}" for section, names in SECTIONS.items() for name in names]
        raise ArgumentError(unknown("A recipe", key, keys))
    try:
        return key, tomlkit.parse(f"value = {value}").unwrap()["value"]
    except TOMLKitError:
        return key, value


# -- what is read


def _outcomes(options: argparse.Namespace) -> Iterator[Outcome]:
    """What each file says; TOML is a recipe. Scripts that are rewritten are read each by itself."""
    from ampbridge_port import Outcome, read, read_many

    together = options.to != "ampbridge"
    for path in options.files:
        if Path(path).suffix == ".toml":
            yield _recipe_file(path)
        elif options.config is None and not options.override:
            yield from read_many([path], together=together)
        else:
            try:
                yield Outcome(path, read(path, config=options.config, override=options.override))
            except SourceError as error:
                yield Outcome(path, None, error)


def _recipe_file(path: str) -> Outcome:
    from ampbridge_port import Alternative, Outcome, Reading

    try:
        recipe = Recipe.load(path)
    except RecipeError as error:
        return Outcome(path, None, SourceError(str(error)))
    sections = recipe.to_dict().items()
    settings = {f"{s}.{key}": value for s, keys in sections for key, value in keys.items()}
    return Outcome(path, Reading(path, "ampbridge", (Alternative((), settings, {}, {}),), ()))


# -- where results go


def _stored(result: Ported, options: argparse.Namespace) -> Ported:
    """Write what is to be written to a file."""
    if result.error is not None:
        return result
    if options.out is not None:
        _save(Path(options.out), result.text)
    elif options.write and result.rewriting is not None:
        try:
            _check_that_it_leads_nowhere_else(Path(result.file), options.files)
            result.rewriting.save()
        except SourceError as error:
            return replace(result, error=error)
    return result


def _check_that_it_leads_nowhere_else(file: Path, named: Sequence[str]) -> None:
    """That a script is in the folder where it was found, and no link out of it.

    Raises:
        SourceError: if it is one.
    """
    real = file.resolve()
    for folder in map(Path, named):
        found_here = folder.is_dir() and file.is_relative_to(folder)
        if found_here and not real.is_relative_to(folder.resolve()):
            msg = f"{file} is a link out of {folder}, to {real}; --write does not follow it.\n"
            raise SourceError(msg + f"Hint: ampbridge port {real} --to ampbridge --write")


def _save(path: Path, text: str) -> None:
    try:
        atomic_files.write(path, text.encode())  # line ends as they are
    except OSError as error:
        msg = f"Cannot write {str(path)!r}: {error.strerror or error}.\n"
        raise ArgumentError(msg + "Hint: --out in a directory that exists.") from error


def _tell(result: Ported, quiet: bool) -> None:
    """What went wrong and, unless ``quiet``, was found on the way."""
    for finding in () if quiet else result.findings:
        print(printable(f"{finding.kind}: {finding}"), file=sys.stderr)
    if result.error:
        print(printable(f"{type(result.error).__name__}: {result.error}"), file=sys.stderr)


def _show(result: Ported, options: argparse.Namespace) -> None:
    """The result of one file; the fidelity report on standard error."""
    if result.error:
        return
    if result.framework is None:
        message = f"{result.file} uses no mixed precision that is known here."
        print(printable(message), file=sys.stderr)
        return
    if not options.write and options.out is None:
        print_text(result.rewriting.difference if result.rewriting else result.text, sys.stdout)
    if result.report and not options.quiet:
        for table in result.report.tables():
            print(file=sys.stderr)
            table.print(sys.stderr)


def _show_several(results: Sequence[Ported], options: argparse.Namespace) -> None:
    """The differences of scripts; then a row for each file that has something to say."""
    for result in results:
        if result.rewriting and not options.write:
            print_text(result.rewriting.difference, sys.stdout)
    summary(results).print(sys.stderr if options.to else sys.stdout)


def summary(results: Sequence[Ported]) -> Table:
    """A row for each file that uses mixed precision or could not be read."""
    using = sum(result.framework is not None for result in results)
    failed = sum(result.error is not None for result in results)
    title = f"Files: {len(results)} read, {using} with mixed precision, {failed} failed"
    rows = tuple(_row(result) for result in results if result.framework or result.error)
    return Table(title, ("file", "framework", "recipes", "unknown", "ignored", "lost"), rows)


def _row(result: Ported) -> tuple[str, ...]:
    if result.error:
        return (result.file, "", f"failed: {str(result.error).splitlines()[0]}", "", "", "")
    kinds = [finding.kind for finding in result.findings]
    recipes = [in_short(candidate) for candidate in result.candidates]
    counts = (str(kinds.count(kind) or "") for kind in ("unknown", "ignored", "lost"))
    return (result.file, result.framework or "", ", ".join(dict.fromkeys(recipes)), *counts)
