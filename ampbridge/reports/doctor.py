"""Reports the devices of the frameworks, and what a model would gain from low precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampbridge.adapters.backend import Model

if TYPE_CHECKING:
    from ampbridge.reports.diagnosis import Report


def doctor(model: Model | None = None) -> Report:
    """Report the devices of this process's frameworks and, with ``model``, what the model would gain.

    It computes a matrix product and its gradient in float32, float16 and bfloat16 on each device.
    It imports no framework: for frameworks that this process has not imported, the report only has
    the installed package. ``ampbridge doctor`` on the command line probes each framework in its own
    process.

    The report prints as tables, and contains the same as data. ``recommendation`` is a policy with
    its reason. Build or call a model first if its layers have no parameters yet.

    Raises:
        BackendNotFoundError: if ``model`` belongs to no registered framework.
    """
    # creating its classes takes 5 ms of the 50 ms of an import
    from ampbridge.reports.diagnosis import diagnose

    return diagnose(model)
