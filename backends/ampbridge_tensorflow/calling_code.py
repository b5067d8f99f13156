"""Where a warning points to: the user's line, however many calls lie between."""

from __future__ import annotations

import sys

BETWEEN = frozenset({"ampbridge", "ampbridge_tensorflow", "contextlib", "keras", "tensorflow"})


def stacklevel() -> int:
    """The ``stacklevel`` for ``warnings.warn``, called beside it, of the nearest line outside of BETWEEN.

    A number cannot be fixed: a region opens from ``autocast``, in calls of models, in traced steps.
    """
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _package(frame.f_globals) in BETWEEN:
        frame, level = frame.f_back, level + 1
    return level


def _package(module: dict[str, object]) -> str:
    return str(module.get("__name__")).partition(".")[0]
