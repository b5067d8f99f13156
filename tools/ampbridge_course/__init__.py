"""Checks the predictions of a student: the questions of the course in docs/course.

    from ampbridge import course

    print(course.check("1.1", {"float16": 10, "bfloat16": 8}, found))

A lesson asks for a prediction and computes ``found``, what really comes out. ``check`` tells the mistake
that leads to a wrong prediction. What was found it tells once the prediction is right, or if it is asked to
reveal it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import isclose, nan
from pathlib import Path
from typing import Any

import tomlkit

from ampbridge.errors import ArgumentError, ArgumentTypeError, listed
from ampbridge.errors.slips import DTYPES
from ampbridge.reports.tables import WIDTH, paragraph

__all__ = ["check", "questions"]

FILE = Path(__file__).with_name("questions.toml")
WORDS = {
    **DTYPES,
    **dict.fromkeys(("all", "almost all"), "most"),
    **dict.fromkeys(("none", "almost none"), "few"),
    **dict.fromkeys(("unchanged", "identical"), "same"),
    **dict.fromkeys(("halved", "smaller"), "changed"),
    **dict.fromkeys(("inf", "nan", "-inf", "not finite", "infinity"), "infinite"),
}
"""Other words for answers. No answer is guessed from a spelling: "unchange" is near "changed"."""


@cache
def questions() -> Mapping[str, Mapping[str, Any]]:
    """The questions by their numbers.

    Each has ``choices``, the words that answer it, or ``near``, how far a number may be off; ``wrong``, the
    mistakes behind wrong answers; ``hint``, for all other answers; ``why``, and ``source``.
    """
    return tomlkit.parse(FILE.read_text("utf-8")).unwrap()


def check(question: str, prediction: object, found: object, *, reveal: bool = False) -> str:
    """Tell what is wrong with ``prediction``.

    Args:
        question: its number, such as "1.1".
        prediction: a number, a word, or a dictionary of these. ``...`` is no prediction yet.
        found: what the lesson computed, in the same form.
        reveal: whether to tell ``found``, and why, whatever was predicted.

    Raises:
        ArgumentError: for an unknown question, names other than those of ``found``, or an unknown word.
        ArgumentTypeError: for what is no number where a number is asked for.
    """
    question = str(question)
    if question not in questions():
        msg = f"No question {question!r}; there are {', '.join(questions())}.\n"
        raise ArgumentError(msg + 'Hint: course.check("1.1", prediction, found)')
    about, truth = questions()[question], _parts(found)
    told = ", ".join(
        f"{part} = {_text(value)}" if part else _text(value) for part, value in truth.items()
    )
    if reveal:
        return paragraph(f"{told}. {about['why']}", WIDTH)
    predicted = _predicted(
        about, dict.fromkeys(truth, ...) if prediction is ... else prediction, truth
    )
    if all(value is ... for value in predicted.values()):
        return paragraph(f"No prediction yet: write {_allowed(about)} in place of `...`.", WIDTH)
    said = {part: _mistake(about, part, predicted[part], truth[part]) for part in truth}
    wrong = [f"{part or 'Wrong'}: {words}" for part, words in said.items() if words]
    if not wrong:
        return paragraph(f"Right: {told}. {about['why']}", WIDTH)
    count = [f"{len(truth) - len(wrong)} of {len(truth)} right."] if len(truth) > 1 else []
    return paragraph("\n".join([*count, *wrong]), WIDTH)


def _parts(value: Any) -> Mapping[str, Any]:
    """Several values by their names, or one without a name."""
    return value if isinstance(value, Mapping) else {"": value}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _allowed(about: Mapping[str, Any]) -> str:
    return listed(about["choices"]) if "choices" in about else "a number"


def _predicted(
    about: Mapping[str, Any], prediction: object, truth: Mapping[str, Any]
) -> Mapping[str, Any]:
    predicted = _parts(prediction)
    if predicted.keys() == truth.keys():
        return {
            name: each if each is ... else _read(about, each) for name, each in predicted.items()
        }
    form = "..." if "" in truth else f"{{{', '.join(f'{part!r}: ...' for part in truth)}}}"
    msg = (
        f"Passed {prediction!r:.80} for {form}, each {_allowed(about)}.\nHint: prediction = {form}"
    )
    raise ArgumentError(msg)


def _read(about: Mapping[str, Any], value: Any) -> float | str:
    """A number, or one of the words that are asked for."""
    choices = about.get("choices")
    if choices is None:
        try:
            number = float("nan" if isinstance(value, bool) else value)
        except (TypeError, ValueError):
            number = nan
        if number != number:
            msg = f"The prediction {value!r:.80} is no number.\nHint: one like -7.5; infinity is 'inf'"
            raise ArgumentTypeError(msg)
        return number
    word = str(value).strip().casefold()
    word = WORDS.get(word, word)
    if word not in choices:
        msg = f"The prediction {value!r:.80} is none of the words that are asked for.\n"
        raise ArgumentError(msg + f"Hint: {listed(choices)}")
    return word


def _mistake(about: Mapping[str, Any], part: str, predicted: Any, truth: Any) -> str:
    """The words for a wrong answer; empty for a right one."""
    if predicted is ...:
        return f"write {_allowed(about)} in place of `...`."
    if _same(predicted, truth, abs_tol=about.get("near", 0)):
        return ""
    for key, words in about["wrong"].items():
        place, _, wrong = key.rpartition(": ")
        rel_tol = 0.02 if about.get("near") else 0
        if place in ("", part) and _same(predicted, _read(about, wrong), rel_tol=rel_tol):
            return str(words)
    if isinstance(truth, str):
        return str(about["hint"])
    return f"too {'large' if predicted > truth else 'small'}: {about['hint']}"


def _same(predicted: Any, value: Any, *, rel_tol: float = 0, abs_tol: float = 0) -> bool:
    if isinstance(value, str):
        return bool(predicted == value)
    return isclose(predicted, value, rel_tol=rel_tol, abs_tol=abs_tol)
