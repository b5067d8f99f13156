"""gin-config: files that bind parameters of the program's own functions.

    ACCUMULATE = 4                                    a macro
    build_optimizer.global_clipnorm = 3.0             the parameter of a function, where no call passes it
    pipeline.train.steps = %ACCUMULATE                a macro's value
    train.optimizer = @build_optimizer()              what a function gives; without (), the function
    include 'base.gin'

Bindings of a scope (``eval/train.steps``) hold inside of ``gin.config_scope`` alone, and are left out.
github.com/google/gin-config 0.5.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ampbridge_port.reader import config_files, settings
from ampbridge_port.reader.operations import merge, of_table
from ampbridge_port.reader.site import Site
from ampbridge_port.reader.values import (
    Class,
    Dictionary,
    Function,
    Items,
    Known,
    Made,
    Unknown,
    Value,
)
from ampbridge_port.reading import Place

if TYPE_CHECKING:
    from ampbridge_port.reader.machine import Machine

NAMED = re.compile(r"""('.*?'|".*?")|([%@]) ((?:\w+ [./] )*\w+)( \( \))?""")
"""Text, which stays; and a macro, or a function that may be called; words have a space between them."""


# -- the format


def parsed(text: str, file: str) -> settings.Table:
    """The bindings of a file: function -> parameter -> value. Macros stand beside the functions.

    Raises:
        SourceError: for what is no gin file.
    """
    root = settings.Table({}, Place(file, 1, 0, ""), {})
    included: list[str] = []
    try:
        for statement in _statements(text):
            words = [token.string for token in statement]
            line = statement[0].start[0]
            if words[0] == "include":
                included.append(ast.literal_eval(words[1]))
            if "=" not in words or words[0] in ("include", "import", "from"):
                continue
            equals = words.index("=")
            path = "".join(words[:equals])
            if "/" in path:
                continue
            function, _, parameter = path.rpartition(".")
            place = Place(file, line, 0, f"{path} = {''.join(words[equals + 1 :])}")
            keys = [*filter(None, [function.rpartition(".")[2]]), parameter]
            root = settings.put(root, keys, _value(words[equals + 1 :]), place)
    except (tokenize.TokenError, SyntaxError, ValueError) as error:
        raise settings.refused(file, f"is no gin file: {error}") from error
    return root.having(settings.SEG, included) if included else root


def _statements(text: str) -> Iterator[list[tokenize.TokenInfo]]:
    """The tokens of each statement."""
    statement: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
            if statement:
                yield statement
            statement = []
        elif token.string.strip() and token.type != tokenize.COMMENT:
            statement.append(token)


def _value(words: list[str]) -> object:
    """A literal; ``${name}`` stands for a macro, as in other files, and ``@name`` for a function."""

    def written(found: re.Match[str]) -> str:
        text, sign, name, called = found.groups()
        name = (name or "").replace(" ", "")
        if text is not None:
            return str(text)
        return repr(f"${{{name}}}" if sign == "%" else f"@{name}{'()' if called else ''}")

    return ast.literal_eval(NAMED.sub(written, " ".join(words)))


# -- what programs do with it


def load(site: Site) -> Value:
    """``gin.parse_config_files_and_bindings(files, bindings)``, and those for a file, or a text, alone."""
    machine = site.machine
    is_text = site.name.endswith("parse_config")
    for position, value in enumerate(site.positional[:2]):
        for each in value.items if isinstance(value, Items) else [value]:
            text = each.data if isinstance(each, Known) else None
            if isinstance(text, str) and (is_text or position == 1):
                merge(machine.bindings, _of_table(parsed(text, site.name)), site.node)
            elif isinstance(text, str):
                found = config_files.loaded(machine, text, site.node)
                merge(machine.bindings, found or Known({}), site.node)
    if machine.config is not None:  # the program is passed it as one of its files
        merge(machine.bindings, _of_table(machine.config), site.node)
    return Known(None)


def _of_table(table: settings.Table) -> Value:
    return of_table(table, table.place)


def configurable(machine: Machine, made: Made, value: Function | Class) -> Value:
    """``@gin.configurable`` and ``@gin.configurable("name")`` of a function, or of a class."""
    given = [each.value for each in made.event.passed if each.name in ("", "name")]
    named = given[0].data if given and isinstance(given[0], Known) else None
    start = value if isinstance(value, Function) else value.scope.names.get("__init__")
    name = str(named or (value.name if isinstance(value, Function) else value.node.name))
    if isinstance(start, Function):
        start.bound_as = name
    machine.configurables[name] = value
    return value


def binding(machine: Machine, function: Function, parameter: str, node: ast.AST) -> Value | None:
    """What is bound to a parameter; None if nothing is."""
    bound = machine.bindings.items.get(function.bound_as)
    found = bound.items.get(parameter) if isinstance(bound, Dictionary) else None
    if found is None:
        return None
    machine.config_used = True
    if not (isinstance(found, Known) and isinstance(found.data, str) and found.data[:1] == "@"):
        return found
    name = found.data.strip("@()").rpartition(".")[2]
    held = machine.configurables.get(name, Unknown(node, (name,)))
    if found.data.endswith("()") and not isinstance(held, Unknown):
        return machine.call(held, (), node, function.scope)
    return held
