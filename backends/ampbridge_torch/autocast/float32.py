"""``Policy.float32``: torch's settings of float32 products, old and new, and TF32 rehearsed on a CPU.

Since torch 2.9 each op of a backend has a setting; where nobody has set it, that of its backend counts,
and then that of the process. What inherits still does so when all is put back. The old settings are kept
in step with the new ones, because torch raises when it reads one that differs. The exception is
``torch.backends.cudnn.allow_tf32``: to set it would end the inheritance for good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ampbridge.adapters.process_setting import Float32Setting
from ampbridge.adapters.tracing import constant_result
from ampbridge_torch import _private

# -- the settings

_BACKENDS = (("generic", "all"), ("cuda", "all"), ("mkldnn", "all"))
_MATMULS = (("cuda", "matmul"), ("mkldnn", "matmul"))
_OPS = (*_MATMULS, ("cuda", "conv"), ("cuda", "rnn"), ("mkldnn", "conv"), ("mkldnn", "rnn"))


class _State(NamedTuple):
    """``cudnn``: the old setting of convolutions, before torch 2.9; ``new``: those that somebody has set."""

    old: str
    cudnn: bool | None
    new: Mapping[tuple[str, str], str]


def _read() -> _State:
    get, set_to = _private.float32_settings()
    if get is None:
        return _State(torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, {})
    new: dict[tuple[str, str], str] = {}
    for key in _BACKENDS:  # from the outside, so that each shows its own
        new[key] = get(*key)
        set_to(*key, "none")
    seen = []
    for precision in ("ieee", "tf32"):
        for key in _BACKENDS:
            set_to(*key, precision)
        seen.append([get(*key) for key in _OPS])
    new |= {key: own for key, own, same in zip(_OPS, *seen, strict=True) if own == same}
    new |= {key: "none" for key in _MATMULS if key not in new}  # which ``_write`` sets
    for key in _MATMULS:
        set_to(*key, "ieee")  # with which the old setting can be read
    state = _State(torch.get_float32_matmul_precision(), None, new)
    _put_back(state)
    return state


def _write(precision: str) -> None:
    get, set_to = _private.float32_settings()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    if get is None:
        _allow_in_cudnn(precision == "tf32")
        return
    for key in (*_BACKENDS, *_OPS):
        if get(*key) != precision:
            set_to(*key, precision)


def _put_back(state: _State) -> None:
    torch.set_float32_matmul_precision(state.old)
    if state.cudnn is not None:
        _allow_in_cudnn(state.cudnn)
    for key, precision in state.new.items():
        _private.float32_settings()[1](*key, precision)


def _allow_in_cudnn(tf32: bool) -> None:
    """Set torch's old setting, also where ``torch.backends.disable_global_flags`` has frozen it."""
    torch.backends.cudnn.set_flags(_allow_tf32=tf32)


@constant_result
def check_traced(precision: str) -> None:
    """Refuse a region in compiled code, unless a block around it says the same."""
    setting.check_traced(precision, "torch.compile")


# -- a rehearsal of TF32

_PRODUCTS: Mapping[str, Sequence[int]] = {
    **dict.fromkeys(("mm", "bmm", "convolution"), (0, 1)),
    **dict.fromkeys(("addmm", "addmm_", "baddbmm", "baddbmm_", "addbmm", "addbmm_"), (1, 2)),
    "convolution_backward": (0, 1, 2),
    "_scaled_dot_product_flash_attention_for_cpu": (0, 1, 2),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (0, 1, 2, 3),
    "mkldnn_rnn_layer": (0, 1, 2, 5),
    "mkldnn_rnn_layer_backward": (0, 1, 2, 5),
}
"""The kernels of products, forward and backward -> the places of what is multiplied."""


class RoundingProducts(TorchDispatchMode):
    """Rounds the float32 inputs of products to TF32, below autograd: a backward pass's too."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if torch.is_inference_mode_enabled():  # in which torch hands over composites as they are
            with self:
                result = func.decompose(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        places = _PRODUCTS.get(func.name().removeprefix("aten::").partition(".")[0], ())
        taken = [to_tf32(x) if place in places else x for place, x in enumerate(args)]
        return func(*taken, **(kwargs or {}))


def to_tf32(x: Any) -> Any:
    """A float32 tensor rounded to 10 bits of fraction, to the nearest, ties to even."""
    if not isinstance(x, Tensor) or x.dtype is not torch.float32 or x.layout is not torch.strided:
        return x
    bits = x.view(torch.int32)
    rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & -0x2000
    return torch.where(x.isfinite(), rounded.view(torch.float32), x)


setting = Float32Setting("torch", _read, _write, _put_back, lambda: "", RoundingProducts)
