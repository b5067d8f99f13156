"""Warnings, which point to the user's line, however many calls lie between."""

from __future__ import annotations

import sys
import warnings

from ampbridge.adapters import registry
from ampbridge.adapters.tracing import called_as_it_is
from ampbridge.errors import AmpBridgeWarning

# Who may lie between, beside the frameworks and their adapters: what calls on somebody's behalf.
BETWEEN = frozenset({"autograd", "contextlib", "copy", "keras"})


@called_as_it_is
def warn(message: str, category: type[AmpBridgeWarning] = AmpBridgeWarning) -> None:
    """Warn of ``message`` at the nearest line that is neither ours nor a framework's.

    A ``stacklevel`` would be a number, and one place is reached over several ways: a region opens from
    ``autocast``, in calls of models, in traced steps.
    """
    between = BETWEEN.union(registry.backend_names(), registry.adapter_packages())
    frame = sys._getframe(1)
    while frame.f_back is not None:
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        is_ours = package == "ampbridge" or package.startswith("ampbridge_")
        if not is_ours and package not in between:
            break
        frame = frame.f_back
    module = frame.f_globals
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        str(module.get("__name__")),
        module.setdefault("__warningregistry__", {}),
    )
