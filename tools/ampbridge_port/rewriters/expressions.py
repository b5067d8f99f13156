"""Python expressions as text: what was written, turned into arguments of ours."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampbridge_port.reader.dialects.calls import Call
from ampbridge_port.reading import Place

KEPT = "\0"
"""What is at a place, within the text that is put there."""


@dataclass(frozen=True)
class Part:
    """Text for a place within a call; for an argument with its ``keyword``, if that is given."""

    place: Place
    text: str
    keyword: str = ""


class Removed:
    """The statement that a call is, is taken out."""


Replacement = Callable[[Call], str | Sequence[Part] | type[Removed] | None]
"""What takes a call's place: text; text for parts of it; nothing. None: it stays."""

UNKNOWN = object()


class NoReplacement(Exception):
    """A call that ampbridge has no single call for; says what to do by hand."""

    def __init__(self, call: Call, why: str, hint: str) -> None:
        super().__init__(why)
        self.message, self.hint = f"{first_line(call)}: {why}.", hint


def text(call: Call, argument: str) -> str | None:
    """The expression that was passed, None where none was, or None itself."""
    written = call.arguments[argument].place.text if argument in call.arguments else "None"
    return None if written == "None" else written


def first_line(call: Call) -> str:
    """The beginning of a call, as it was written."""
    return call.place.text.splitlines()[0]


def literal(written: str | None) -> Any:
    """The value of a literal, ``UNKNOWN`` for any other expression."""
    try:
        return UNKNOWN if written is None else ast.literal_eval(written)
    except (ValueError, SyntaxError):
        return UNKNOWN


def operand(written: str) -> str:
    """``written``, in parentheses unless it binds tighter than every operator."""
    node = ast.parse(f"({written})", mode="eval").body
    alone = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)
    return written if isinstance(node, alone) else f"({written})"


def names(values: Sequence[str]) -> str:
    """A list of names, as code."""
    return str(list(values)).replace("'", '"')


def dtype(written: str | None, default: str) -> str:
    """The name of a dtype: a literal, ``torch.bfloat16``, or whatever it is at run time."""
    value = literal(written)
    if isinstance(value, str) or written is None:
        return f'"{default if written is None else value}"'
    last = written.rpartition(".")[2]
    if last in ("float16", "bfloat16", "float32"):
        return f'"{last}"'
    return f'str({written}).rpartition(".")[2]'


def policy(level: str, dtype_name: str, enabled: str | None = None, **others: str | None) -> str:
    """``ampbridge.Policy(...)``, of float32 where ``enabled`` is false; ``others`` but for None."""
    if literal(enabled) is False or dtype_name == '"float32"':
        return '"O0"'
    if enabled is not None and literal(enabled) is not True:
        level = f'{operand(level)} if {operand(enabled)} else "O0"'
    arguments = [level] if dtype_name == '"float16"' else [level, dtype_name]
    arguments += [f"{name}={value}" for name, value in others.items() if value is not None]
    return f"ampbridge.Policy({', '.join(arguments)})"


def scaler(call: Call, preset: str, renamed: Mapping[str, str]) -> str:
    """``GradScaler.like(preset, ...)`` with the arguments that were passed, by our names."""
    given = {
        ours: call.arguments[theirs].place.text
        for theirs, ours in renamed.items()
        if theirs in call.arguments
    }
    if literal(given.get("enabled")) is not UNKNOWN:  # GradScaler(1024) sets it, too
        given["enabled"] = str(bool(literal(given["enabled"])))
    arguments = [f'"{preset}"', *(f"{name}={value}" for name, value in given.items())]
    return f"ampbridge.GradScaler.like({', '.join(arguments)})"


def function(call: Call) -> str:
    """The text of what is called: ``self.scaler.unscale_``."""
    source = f"({call.place.text})"
    node = ast.parse(source, mode="eval").body
    return ast.get_source_segment(source, node.func) or "" if isinstance(node, ast.Call) else ""


def receiver(call: Call) -> str:
    """What the method was called on."""
    return function(call).rpartition(".")[0].rstrip()


def check_plain(call: Call) -> None:
    """Refuse what cannot be told from the text of the call.

    Raises:
        NoReplacement: for ``*args``, ``**kwargs``, and parameters that are not known.
    """
    if call.unpacked is not None:
        why = f"what {call.unpacked.text} holds is only known at run time"
        raise NoReplacement(call, why, "write the arguments out, then rewrite again.")
    if call.extra:
        why = f"{', '.join(call.extra)} is no known argument of {call.name}"
        raise NoReplacement(call, why, "leave it out, then rewrite again.")
