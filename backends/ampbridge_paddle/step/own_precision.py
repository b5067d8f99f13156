"""``paddle.amp.auto_cast`` of the user's own, noticed around a first step and within its loss.

``paddle.amp.GradScaler`` within a loss is refused, as ampbridge's is. On a CPU neither does anything,
as Paddle warns.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import paddle

from ampbridge.adapters.backend import Model, OwnPrecisionNotice
from ampbridge.adapters.interception import Interception, Site
from ampbridge.scaling.scaled_once import check_that_nobody_else_scales
from ampbridge_paddle.autocast import casting, execution


def _tell(notice: OwnPrecisionNotice, level: str, dtype: str, counts: bool) -> None:
    notice(f"paddle.amp.auto_cast(level={level!r}, dtype={dtype!r})", dtype, counts)


@contextmanager
def noticed(model: Model, notice: OwnPrecisionNotice) -> Iterator[None]:
    """See ``Backend.noticing_own_precision``."""
    del model
    if execution.on_cpu():
        yield
        return
    around = casting.own_auto_cast()
    if around is not None:
        _tell(notice, *around, counts=False)
    with _entering.region(notice):
        yield


def _watched(guard: Any) -> Any:
    """Make ``amp_guard``, which is all of ``auto_cast``, tell of a region that the user opens."""

    def watched_guard(
        enable: bool = True,
        custom_white_list: Any = None,
        custom_black_list: Any = None,
        level: str = "O1",
        dtype: str = "float16",
        use_promote: bool = True,
    ) -> Any:
        notice = _entering.active.get()
        if notice is not None and enable and level != "O0" and not casting.opening.get():
            _tell(notice, level, str(dtype), counts=True)
        return guard(enable, custom_white_list, custom_black_list, level, dtype, use_promote)

    return watched_guard


def _refused(scale: Any) -> Any:
    """Make ``GradScaler.scale`` raise an error within a first step."""

    def refused_scale(self: Any, var: Any) -> Any:
        if _entering.active.get() is not None and self.is_enable():
            check_that_nobody_else_scales()
        return scale(self, var)

    return refused_scale


def _sites() -> list[Site]:
    module = import_module("paddle.amp.auto_cast")  # as an attribute it is the function
    scaler = paddle.amp.GradScaler
    return [
        Site(module, "amp_guard", module.amp_guard, _watched(module.amp_guard)),
        Site(scaler, "scale", vars(scaler)["scale"], _refused(vars(scaler)["scale"])),
    ]


_entering: Interception[OwnPrecisionNotice] = Interception("ampbridge_paddle own auto_cast", _sites)
