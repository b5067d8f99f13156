"""What there is to compute with, and what a model would gain from low precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampbridge.adapters.backend import Model

if TYPE_CHECKING:
    from ampbridge.reports.diagnosis import Report


def doctor(model: Model | None = None) -> Report:
    """What the frameworks of this process have to compute with; with ``model``, what it would gain.

    A matrix product and its gradient are tried in float32, float16 and bfloat16 on each device.
    Frameworks that this process has not imported are told by their packages alone, and none is
    imported; ``ampbridge doctor`` on the command line asks each in a process of its own.

    The report prints as tables and holds the same as data; ``recommendation`` is a policy with its
    reason. A model whose layers have no parameters yet is to be built or called first.

    Raises:
        BackendNotFoundError: if ``model`` is of no registered framework.
    """
    # its classes take 5 ms to make, of an import's 50
    from ampbridge.reports.diagnosis import diagnose

    return diagnose(model)
