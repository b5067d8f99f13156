"""The command ``ampbridge lists``: ``show``, ``diff``, ``why`` and ``translate``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable

from ampbridge.cli.options import Commands, add_output
from ampbridge.reports.lists import FRAMEWORKS, Difference, ListedOps, Lists, translate, why
from ampbridge.reports.printing import Table

_LISTS = "paddle, torch:cuda, tensorflow:bfloat16, safe:O2, paddle:O1:float16"


def add_to(commands: Commands) -> None:
    """Add ``lists`` to the commands of a parser."""
    lists = commands.add_parser(
        "lists", help="op lists: their rules, their differences, and the reasons"
    )
    kinds = lists.add_subparsers(title="commands", required=True)

    show = _add(kinds, "show", "the rule of every op on a list", _show)
    show.add_argument("lists", help=_LISTS)

    diff = _add(kinds, "diff", "the ops for which lists have different rules", _diff)
    diff.add_argument("lists", nargs="+", help=_LISTS)

    reasons = _add(kinds, "why", "the rules of an op, the reason, and its names", _why)
    reasons.add_argument("ops", nargs="+", help="softmax, paddle:reduce_sum, tf:MatMul")

    translated = _add(kinds, "translate", "op names of one framework in another", _translate)
    frameworks = ", ".join(FRAMEWORKS)
    translated.add_argument(
        "--from", dest="source", help=f"{frameworks}; by default, names are canonical"
    )
    translated.add_argument("--to", dest="target", required=True, help=frameworks)
    translated.add_argument("names", nargs="+", help="reduce_sum, matmul_v2")


def _add(
    kinds: Commands, name: str, says: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(name, help=says, description=says)
    add_output(parser)
    parser.set_defaults(run=run)
    return parser


def _show(options: argparse.Namespace) -> int:
    shown = ListedOps(Lists.parse(options.lists))
    return _print(options, shown.to_dict, lambda: [shown.table()])


def _diff(options: argparse.Namespace) -> int:
    difference = Difference(tuple(map(Lists.parse, options.lists)))
    return _print(options, difference.to_dict, lambda: [difference.table()])


def _why(options: argparse.Namespace) -> int:
    reasons = [why(name) for name in options.ops]
    return _print(
        options,
        lambda: [reason.to_dict() for reason in reasons],
        lambda: [table for reason in reasons for table in reason.tables()],
    )


def _translate(options: argparse.Namespace) -> int:
    translation = translate(options.names, options.source, options.target)
    return _print(options, translation.to_dict, lambda: [translation.table()])


def _print(
    options: argparse.Namespace,
    data: Callable[[], object],
    tables: Callable[[], Iterable[Table]],
) -> int:
    if options.json:
        print(json.dumps(data()))
        return 0
    for i, table in enumerate(tables()):
        if i:
            print()
        table.print(sys.stdout)
    return 0
