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
    """Where a name lives, and what does not work without it."""

    module: str
    attribute: str
    without: str


TABLE = {
    name.attribute: name
    for name in (
        PrivateName("autograd.numpy", "numpy_boxes", "no op can be intercepted"),
        PrivateName("autograd.numpy.numpy_boxes", "ArrayBox", "no op can be intercepted"),
        PrivateName(
            "autograd.numpy.numpy_boxes",
            "trace_primitives_map",
            "ops on a plain array and a traced one (x @ w) are not cast",
        ),
        PrivateName("autograd.numpy", "numpy_wrapper", "operators (w * x) are not cast"),
        PrivateName("autograd.core", "primitive_vjps", "ops outside of the op table are not cast"),
        PrivateName("autograd.core", "add_outgrads", "no gradients"),
        PrivateName("autograd.tracer", "getval", "no op can be intercepted"),
        PrivateName("autograd.tracer", "isbox", "no gradients"),
        PrivateName("autograd.tracer", "new_box", "no gradients"),
        PrivateName("autograd.tracer", "toposort", "no gradients"),
        PrivateName("autograd.tracer", "trace_stack", "no gradients"),
    )
}
"""All of them are required."""


def look_up(attribute: str) -> Any:
    """The object behind a name of the table.

    Raises:
        UnsupportedError: if this version of ``autograd`` does not have it.
    """
    name = TABLE[attribute]
    try:
        return getattr(import_module(name.module), attribute)
    except (ImportError, AttributeError) as error:
        msg = (
            f"This version of autograd has no {name.module}.{attribute}; without it {name.without}.\n"
            f"Hint: pip install 'autograd>=1.7,<2'  # checked: {CHECKED_VERSIONS}"
        )
        raise UnsupportedError(msg) from error
