"""Reports as plain JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from math import isfinite
from typing import Any


def plain(value: Any) -> Any:
    """``value`` as JSON values: by its ``to_dict``; dataclasses, named tuples and mappings as dicts.

    Infinities and NaN, which JSON lacks, are None.
    """
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value):
        return plain_fields(value)
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(each) for each in value]
    if isinstance(value, float) and not isfinite(value):
        return None
    return value


def plain_fields(report: Any) -> dict[str, Any]:
    """The fields of a dataclass, each as JSON values."""
    return {field.name: plain(getattr(report, field.name)) for field in fields(report)}
