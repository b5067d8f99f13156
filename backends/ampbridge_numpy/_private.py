"""Every name of ``autograd`` that is not part of its public interface, and what hangs on it.

``autograd`` documents its differential operators and ``autograd.extend``. To cast ops and to take
gradients of many arrays at once the adapter reaches deeper; it does so through this table alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

from ampbridge.errors import UnsupportedError

CHECKED_VERSIONS = "autograd 1.7.0 and 1.9.1"


class PrivateName(NamedTuple):
    """Where a name lives, what does not work without it, and whether it must be there."""

    module: str
    attribute: str
    without: str
    required: bool = True


TABLE = {
    name.attribute: name
    for name in (
        PrivateName("autograd.numpy", "numpy_boxes", "no op can be intercepted"),
        PrivateName("autograd.numpy.numpy_boxes", "ArrayBox", "no op can be intercepted"),
        PrivateName(
            "autograd.numpy.numpy_boxes",
            "trace_primitives_map",
            "NumPy's own functions of a traced array are not cast",
            required=False,  # autograd 1.7 has none, and NumPy's functions do not come to it
        ),
        PrivateName("autograd.numpy", "numpy_wrapper", "operators (w * x) are not cast"),
        PrivateName("autograd.numpy.numpy_vjps", "unbroadcast_f", "a bias has no gradient"),
        PrivateName("autograd.core", "primitive_vjps", "ops outside of the op table are not cast"),
        PrivateName("autograd.core", "add_outgrads", "no gradients"),
        PrivateName("autograd.tracer", "box_types", "no op can be intercepted"),
        PrivateName("autograd.tracer", "new_box", "no gradients"),
        PrivateName("autograd.tracer", "toposort", "no gradients"),
        PrivateName("autograd", "tracer", "no gradients"),
        PrivateName("autograd.tracer", "trace_stack", "no gradients"),
    )
}


def look_up(attribute: str) -> Any:
    """The object behind a name of the table; None if it is missing and optional.

    Raises:
        UnsupportedError: if this version of ``autograd`` lacks a required one.
    """
    name = TABLE[attribute]
    try:
        return getattr(import_module(name.module), attribute)
    except (ImportError, AttributeError) as error:
        if not name.required:
            return None
        msg = (
            f"This version of autograd has no {name.module}.{attribute}; without it {name.without}.\n"
            f"Hint: pip install 'autograd>=1.7,<2'  # checked: {CHECKED_VERSIONS}"
        )
        raise UnsupportedError(msg) from error
