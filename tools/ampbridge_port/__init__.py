"""Porting: read a recipe written for one framework, write it for another.

Modules are imported on first use, because adapters need only the names in lists.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ampbridge_port.fidelity_report import Report, fidelity
    from ampbridge_port.reader.files import Outcome, read, read_many
    from ampbridge_port.reading import Alternative, Finding, Origin, Place, Reading
    from ampbridge_port.rewriting import Rewriting, rewrite
    from ampbridge_port.writers import write

_MODULES = {
    "Alternative": "reading",
    "Finding": "reading",
    "Origin": "reading",
    "Outcome": "reader.files",
    "Place": "reading",
    "Reading": "reading",
    "Report": "fidelity_report",
    "Rewriting": "rewriting",
    "fidelity": "fidelity_report",
    "read": "reader.files",
    "read_many": "reader.files",
    "rewrite": "rewriting",
    "write": "writers",
}

__all__ = [
    "Alternative",
    "Finding",
    "Origin",
    "Outcome",
    "Place",
    "Reading",
    "Report",
    "Rewriting",
    "fidelity",
    "read",
    "read_many",
    "rewrite",
    "write",
]


if not TYPE_CHECKING:  # type checkers would accept every name

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
