"""``torch.autocast`` of the user's own, noticed around a first step and within its loss.

``torch.amp.GradScaler`` within a loss is refused, as ampbridge's is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from ampbridge.adapters.backend import OwnPrecisionNotice
from ampbridge.adapters.interception import Interception, Site
from ampbridge.scaling.scaled_once import check_that_nobody_else_scales
from ampbridge_torch import _private
from ampbridge_torch.autocast import merging
from ampbridge_torch.autocast.casting import devices_of
from ampbridge_torch.devices import DeviceType


class _Watch(NamedTuple):
    """A step of a model on devices of ``types``."""

    types: tuple[DeviceType, ...]
    notice: OwnPrecisionNotice

    def tell(self, device_type: str, dtype: torch.dtype, counts: bool) -> None:
        """Give notice of a region for one of the devices."""
        if device_type in self.types:
            what = f"torch.autocast({device_type!r}, dtype={dtype})"
            self.notice(what, str(dtype).removeprefix("torch."), counts)


@contextmanager
def noticed(model: nn.Module, notice: OwnPrecisionNotice) -> Iterator[None]:
    """See ``Backend.noticing_own_precision``."""
    watch = _Watch(devices_of(model), notice)
    for device_type in watch.types:
        if torch.is_autocast_enabled(device_type) and not merging.here.merges:
            watch.tell(device_type, torch.get_autocast_dtype(device_type), counts=False)
    with _entering.region(watch):
        yield


def _watched(enter: Any) -> Any:
    """``torch.autocast.__enter__`` that tells of a region of the user's.

    Backward passes open regions as the forward pass had them, in checkpoints for example.
    """

    def watched_enter(self: torch.autocast) -> Any:
        watch = _entering.active.get()
        if watch is not None and self._enabled and not _private.is_backward_pass():
            watch.tell(self.device, self.fast_dtype, counts=True)
        return enter(self)

    return watched_enter


def _refused(scale: Any) -> Any:
    """``GradScaler.scale`` that is refused within a first step."""

    def refused_scale(self: torch.amp.GradScaler, outputs: Any) -> Any:
        if _entering.active.get() is not None and self.is_enabled():
            check_that_nobody_else_scales()
        return scale(self, outputs)

    return refused_scale


def _sites() -> list[Site]:
    enter, scale = vars(torch.autocast)["__enter__"], vars(torch.amp.GradScaler)["scale"]
    return [
        Site(torch.autocast, "__enter__", enter, _watched(enter)),
        Site(torch.amp.GradScaler, "scale", scale, _refused(scale)),
    ]


_entering: Interception[_Watch] = Interception("ampbridge_torch own autocast", _sites)
