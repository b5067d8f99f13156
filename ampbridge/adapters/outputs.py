"""What a call of a decorated model returns in 16 bits, though the policy promises ``output_dtype``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ampbridge.adapters.calling_code import warn
from ampbridge.adapters.nested import leaves
from ampbridge.adapters.tracing import called_as_it_is

_DEPTH = 3  # a mixture has components, which have a distribution

_said: set[type] = set()


@called_as_it_is
def warn_of_low_values_inside(
    result: Any, output_dtype: str, dtype_of: Callable[[Any], str | None]
) -> None:
    """Say once for a class that its objects hold 16-bit arrays, which nothing casts.

    Args:
        result: what the model returned, with the arrays in containers cast.
        dtype_of: the name of an array's dtype; None for what is no array.
    """

    def is_low(value: Any) -> bool:
        dtype = dtype_of(value)
        return dtype in ("float16", "bfloat16") and dtype != output_dtype

    for leaf in leaves(result):
        kind = type(leaf)
        if kind in _said or dtype_of(leaf) is not None:
            continue
        if "cache" in kind.__name__.lower():
            continue  # of keys and values, which the next call reads in 16 bits
        if not _holds([leaf], is_low, _DEPTH):
            continue
        _said.add(kind)
        warn(
            f"A call of a decorated model returned 16-bit arrays inside of a {kind.__qualname__}, which "
            f"is no container: output_dtype={output_dtype!r} does not reach them.\n"
            f"Hint: keep=[LAYER], with the layer that computes what the {kind.__qualname__} is made of; or "
            "return its arrays in a list, a dict or a dataclass."
        )


def _holds(values: Iterable[Any], is_low: Callable[[Any], bool], depth: int) -> bool:
    """Whether an object among ``values`` has a low attribute, up to ``depth`` objects deep."""
    for value in values:
        attributes = leaves(list(getattr(value, "__dict__", {}).values()))
        if any(map(is_low, attributes)) or (depth > 1 and _holds(attributes, is_low, depth - 1)):
            return True
    return False
