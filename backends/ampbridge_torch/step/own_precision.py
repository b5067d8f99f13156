"""``torch.autocast`` of the user's own, noticed around a first step and within its loss.

``torch.amp.GradScaler`` within a loss is refused, as ampbridge's is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import nn

from ampbridge.adapters.backend import OwnPrecisionNotice
from ampbridge.adapters.interception import Interception, Site
from ampbridge.scaling.scaled_once import check_that_nobody_else_scales
from ampbridge_torch import _private
from ampbridge_torch.autocast import merging
from ampbridge_torch.autocast.casting import devices_of


@contextmanager
def noticed(model: nn.Module, notice: OwnPrecisionNotice) -> Iterator[None]:
    """See ``Backend.noticing_own_precision``."""
    types = devices_of(model)

    def tell(device_type: str, dtype: torch.dtype, counts: bool) -> None:
        if device_type in types:
            what = f"torch.autocast({device_type!r}, dtype={dtype})"
            notice(what, str(dtype).removeprefix("torch."), counts)

    for device_type in types:
        if torch.is_autocast_enabled(device_type) and not merging.here.merges:
            tell(device_type, torch.get_autocast_dtype(device_type), False)
    with _first_step.region(tell):
        yield


def _sites() -> list[Site]:
    enter, scale = vars(torch.autocast)["__enter__"], vars(torch.amp.GradScaler)["scale"]

    def telling_enter(self: torch.autocast) -> Any:
        tell = _first_step.active.get()
        # Backward passes open regions as the forward pass had them, in checkpoints for example.
        if tell is not None and self._enabled and not _private.is_backward_pass():
            tell(self.device, self.fast_dtype, True)
        return enter(self)

    def refused_scale(self: torch.amp.GradScaler, outputs: Any) -> Any:
        if _first_step.active.get() is not None and self.is_enabled():
            check_that_nobody_else_scales()
        return scale(self, outputs)

    return [
        Site(torch.autocast, "__enter__", enter, telling_enter),
        Site(torch.amp.GradScaler, "scale", scale, refused_scale),
    ]


_Tell: TypeAlias = Callable[[str, torch.dtype, bool], None]
_first_step: Interception[_Tell] = Interception("ampbridge_torch own autocast", _sites)
