"""A configuration file's text -> what it stands for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ampbridge_port.configs import document, paddle, torch
from ampbridge_port.configs.way import Format, Way
from ampbridge_port.dialect import Draft
from ampbridge_port.reading import Alternative, Finding, Reading
from ampbridge_port.table import Table

# The first that recognises a file reads it: the more particular ones stand first.
FORMATS: Sequence[Format] = (*torch.FORMATS, *paddle.FORMATS)


def read_config(text: str, file: str) -> Reading:
    """What the configuration ``text`` says of mixed precision. ``file`` names it; ``.json`` is JSON.

    Raises:
        SourceError: for what is no JSON and no YAML, holds no table, or is too large or too deep.
    """
    return read_table(document.read(text, file), file)


def read_table(root: Table, file: str) -> Reading:
    """What the table of a configuration says of mixed precision, as ``read_config``."""
    for form in FORMATS:
        if form.recognises(root):
            return _reading(file, form.framework, form.ways(root))
    return Reading(file, None, (), ())


def _reading(file: str, framework: str, ways: Iterable[Way]) -> Reading:
    alternatives: list[Alternative] = []
    findings: dict[Finding, None] = {}  # each once, in order
    for conditions, read in ways:
        draft = Draft()
        read(draft)
        found = dict.fromkeys((*_unknown(draft), *draft.findings))
        alternatives.append(
            Alternative(
                conditions,
                draft.settings,
                draft.unknown,
                draft.comments,
                findings=tuple(found),
                origins=draft.origins,
            )
        )
        findings.update(found)
    return Reading(file, framework, tuple(alternatives), tuple(findings))


def _unknown(draft: Draft) -> list[Finding]:
    return [
        Finding(
            "unknown",
            place,
            f"{key} is {place.text}, which this file does not say.",
            f"--set {key}=...",
            key,
        )
        for key, place in draft.unknown.items()
    ]
