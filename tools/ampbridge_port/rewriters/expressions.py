"""Python expressions as text: what was written, turned into arguments of ours."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampbridge_port.dialect import Call
from ampbridge_port.reading import Place


@dataclass(frozen=True)
class Around:
    """Text that is put before and behind a place within a call."""

    place: Place
    before: str
    behind: str


@dataclass(frozen=True)
class Instead:
    """Text in the place of a part of a call; of an argument with its ``keyword``, if that is given."""

    place: Place
    text: str
    keyword: str = ""


class Removed:
    """The statement that a call is, is taken out."""


Replacement = Callable[[Call], str | Sequence[Around | Instead] | type[Removed] | None]
"""What takes a call's place: text; text around or instead of parts of it; nothing. None: it stays."""

UNKNOWN = object()


class NoReplacement(Exception):
    """A call that ampbridge has no single call for; says what to do by hand."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


def text(call: Call, argument: str) -> str | None:
    """The expression that was passed, None where none was, or None itself."""
    if argument not in call.arguments:
        return None
    written = call.arguments[argument].place.text
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


def dtype(written: str | None, default: str) -> str:
    """The name of a dtype: a literal, ``torch.bfloat16``, or whatever it is at run time."""
    if written is None:
        return f'"{default}"'
    value = literal(written)
    if isinstance(value, str):
        return f'"{value}"'
    last = written.rpartition(".")[2]
    if last in ("float16", "bfloat16", "float32"):
        return f'"{last}"'
    return f'str({written}).rpartition(".")[2]'


def policy(level: str, dtype_name: str, enabled: str | None = None, **others: str | None) -> str:
    """``ampbridge.Policy(...)``, of float32 where ``enabled`` is false; ``others`` but for None."""
    if literal(enabled) is False:
        return '"O0"'
    if enabled is not None and literal(enabled) is not True:
        level = f'{operand(level)} if {operand(enabled)} else "O0"'
    arguments = [level] if dtype_name == '"float16"' else [level, dtype_name]
    arguments += [f"{name}={value}" for name, value in others.items() if value is not None]
    return f"ampbridge.Policy({', '.join(arguments)})"


def scaler(call: Call, preset: str, names: Mapping[str, str]) -> str:
    """``GradScaler.like(preset, ...)`` with the arguments that were passed, by our names."""
    given = {
        ours: call.arguments[theirs].place.text
        for theirs, ours in names.items()
        if theirs in call.arguments
    }
    arguments = [f'"{preset}"', *(f"{name}={value}" for name, value in given.items())]
    return f"ampbridge.GradScaler.like({', '.join(arguments)})"


def receiver(call: Call) -> str:
    """What the method was called on."""
    source = f"({call.place.text})"
    node = ast.parse(source, mode="eval").body
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Attribute)
    segment = ast.get_source_segment(source, node.func.value)
    assert segment is not None
    return segment


def check_plain(call: Call) -> None:
    """Refuse what cannot be told from the text of the call.

    Raises:
        NoReplacement: for ``*args``, ``**kwargs``, and parameters that are not known.
    """
    if call.unpacked is not None:
        msg = f"{call.place.text}: what {call.unpacked.text} holds is only known at run time."
        raise NoReplacement(msg, "write the arguments out, then rewrite again.")
    if call.extra:
        msg = f"{call.place.text}: {', '.join(call.extra)} is no known argument of {call.name}."
        raise NoReplacement(msg, "leave it out, then rewrite again.")
