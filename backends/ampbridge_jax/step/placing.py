"""Arrays that are sharded over several devices, and stay so: XLA may lay out a result as it likes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from ampbridge_jax._private import fill, value_of

_spec: Any = PartitionSpec


def may_be_spread() -> bool:
    """Whether there is more than one device."""
    return jax.device_count() > 1


def shardings_of(arrays: Sequence[Any]) -> list[Any]:
    """How each array lies on devices; None for what is no array yet."""
    return [getattr(x, "sharding", None) for x in arrays]


def mesh_of(arrays: Sequence[Any]) -> Any:
    """The first mesh of several devices among those of arrays; None if there is none."""
    found = (s.mesh for s in shardings_of(arrays) if _is_spread(s))
    return next(found, None)


def on_mesh(arrays: Sequence[Any], mesh: Any) -> list[Any]:
    """A sharding of each array: its own, and every device for what nobody has put anywhere."""
    everywhere = NamedSharding(mesh, _spec())
    return [x.sharding if getattr(x, "committed", False) else everywhere for x in arrays]


def spread_as(value: Any, before: Any) -> Any:
    """``value`` on the devices of ``before``, if these are several."""
    if isinstance(value, jax.core.Tracer) or isinstance(before, jax.core.Tracer):
        return value
    own, wanted = shardings_of([value, before])
    return jax.device_put(value, wanted) if _is_spread(wanted) and own != wanted else value


def keep_shardings(variables: Sequence[Any], before: Sequence[Any]) -> None:
    """Put what ``variables`` hold on the devices of what they held before."""
    if may_be_spread():
        for variable, old in zip(variables, before, strict=True):
            fill(variable, spread_as(value_of(variable), old))


def _is_spread(sharding: Any) -> bool:
    return isinstance(sharding, NamedSharding) and sharding.num_devices > 1
