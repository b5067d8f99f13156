"""A program's reading and that of its configuration, as one.

The program says what it does with the configuration. What it leaves to functions that are found by name
only (``build_optimizer(config["Optimizer"])``), and so is missing, is taken from what is known of the
project whose configuration it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ampbridge_port.reading import Alternative, Finding, Place, Reading


def joined(program: Reading, config: Reading) -> Reading:
    """One reading of both."""
    note = _note(program, config)
    if config.framework is None:
        return program
    if program.framework is None:
        trains = "trains without mixed precision, as far as it can be followed"
        message = f"With {config.file}, {program.file} {trains}; the rest is what such files mean."
        note = Finding("note", Place(program.file, 1, 0, ""), message)
        return replace(
            config, file=program.file, findings=(*config.findings, note), ops=program.ops
        )
    known = _shared(config.alternatives)
    filled = tuple(_filled(each, known) for each in program.alternatives)
    if filled == program.alternatives:
        return program
    told = tuple(each for each in known.findings if each.kind != "unknown")
    still = {key for each in filled for key in each.unknown}
    kept = tuple(f for f in program.findings if not _is_answered(f, program, still))
    return replace(program, alternatives=filled, findings=(*kept, *told, note))


def _shared(candidates: Sequence[Alternative]) -> Alternative:
    """What all recipes have that a configuration may stand for."""
    first, *others = candidates
    shared = {
        key: value
        for key, value in first.settings.items()
        if all(key in each.settings and each.settings[key] == value for each in others)
    }
    return replace(first, settings=shared)


def _note(program: Reading, config: Reading) -> Finding:
    message = (
        f"What {program.file} leaves to functions that it finds by name is as such files mean it."
    )
    return Finding("note", Place(config.file, 1, 0, ""), message)


def _filled(alternative: Alternative, known: Alternative) -> Alternative:
    """An alternative with what it lacks of the step, and what is unknown of it."""
    of_step = {
        key for key in known.settings if key.startswith("step.")
    } - alternative.settings.keys()
    answered = alternative.unknown.keys() & known.settings.keys()
    if alternative.settings.get("policy.level") == "O0":
        answered = set()
    added = {key: known.settings[key] for key in (of_step | answered)}
    if not added:
        return alternative
    comments = {key: known.comments[key] for key in added if key in known.comments}
    return replace(
        alternative,
        settings={**alternative.settings, **added},
        unknown={key: at for key, at in alternative.unknown.items() if key not in added},
        comments={**alternative.comments, **comments},
    )


def _is_answered(finding: Finding, program: Reading, still: set[str]) -> bool:
    """Whether it says that something is unknown which is known now."""
    places = {at: key for each in program.alternatives for key, at in each.unknown.items()}
    return (
        finding.kind == "unknown" and finding.place in places and places[finding.place] not in still
    )
