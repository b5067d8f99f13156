"""How a step clips its unscaled gradients: by their joint norm, each by its own norm, or by value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

from ampbridge.adapters.backend import Array, Backend, Scalar
from ampbridge.errors import ArgumentError

CLIPPINGS = ("clip_norm", "clip_each_norm", "clip_value")
"""The settings of a step, of which it has one at most, as Keras' optimizers do."""


class Clipping(NamedTuple):
    """A way to clip, one of ``CLIPPINGS``, and its limit."""

    name: str
    limit: float

    def clip(self, backend: Backend, grads: Sequence[Array]) -> tuple[list[Array], Scalar | None]:
        """The clipped gradients, and their joint norm before if the way is ``clip_norm``."""
        if self.name == "clip_norm":
            return backend.clip(grads, self.limit)
        if self.name == "clip_value":
            return backend.clip_values(grads, self.limit), None
        clipped = [g if g is None else backend.clip([g], self.limit)[0][0] for g in grads]
        return clipped, None


def clipping_of(settings: Mapping[str, float | None]) -> Clipping | None:
    """The one of ``CLIPPINGS`` that is set; refuses two."""
    chosen = [Clipping(name, limit) for name in CLIPPINGS if (limit := settings[name]) is not None]
    if len(chosen) > 1:
        passed = " and ".join(f"{name}={limit:g}" for name, limit in chosen)
        raise ArgumentError(
            f"Passed {passed}; a step clips in one way.\n"
            f"Hint: {' or '.join(f'{name}={limit:g} alone' for name, limit in chosen)}"
        )
    return chosen[0] if chosen else None


def checked_limit(name: str, value: Any) -> float | None:
    """The limit of the clipping ``name``, a positive number; None for none."""
    if value is None:
        return None
    if isinstance(value, Real) and not isinstance(value, bool) and float(value) > 0:
        return float(value)
    msg = f"Passed {name}={value!r}; allowed is a positive number or None.\nHint: {name}=1.0"
    raise ArgumentError(msg)
