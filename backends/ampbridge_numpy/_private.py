"""Every name of ``autograd`` that is not part of its public interface, and what hangs on it.

``autograd`` documents its differential operators and ``autograd.extend``. To cast ops and to take
gradients of many arrays at once the adapter reaches deeper; it does so through this table alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from ampbridge.errors import UnsupportedError

CHECKED_VERSIONS = "autograd 1.7.0 and 1.9.1"

# Name -> the module that holds it, and what does not work without it.
TABLE: Mapping[str, tuple[str, str]] = {
    "numpy_boxes": ("autograd.numpy", "no op can be intercepted"),
    "ArrayBox": ("autograd.numpy.numpy_boxes", "no op can be intercepted"),
    "trace_primitives_map": (
        "autograd.numpy.numpy_boxes",
        "NumPy's own functions of a traced array are not cast",
    ),
    "numpy_wrapper": ("autograd.numpy", "operators (w * x) are not cast"),
    "unbroadcast_f": ("autograd.numpy.numpy_vjps", "a bias has no gradient"),
    "primitive_vjps": ("autograd.core", "ops outside of the op table are not cast"),
    "add_outgrads": ("autograd.core", "no gradients"),
    "box_types": ("autograd.tracer", "no op can be intercepted"),
    "new_box": ("autograd.tracer", "no gradients"),
    "toposort": ("autograd.tracer", "no gradients"),
    "tracer": ("autograd", "no gradients"),
    "trace_stack": ("autograd.tracer", "no gradients"),
}

# autograd 1.7 lacks it, and NumPy's functions do not come to that autograd.
OPTIONAL = "trace_primitives_map"


def look_up(attribute: str) -> Any:
    """The object behind a name of the table; None if it is missing and optional.

    Raises:
        UnsupportedError: if this version of ``autograd`` lacks a required one.
    """
    module, without = TABLE[attribute]
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        if attribute == OPTIONAL:
            return None
        raise UnsupportedError(
            f"This version of autograd has no {module}.{attribute}; without it {without}.\n"
            f"Hint: pip install 'autograd>=1.7,<2'  # checked: {CHECKED_VERSIONS}"
        ) from error
