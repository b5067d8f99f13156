"""Ops that refuse tensors of two dtypes take them in a region: ``float32.index_add(0, at, low)``.

Torch promotes in arithmetic, and raises where values are merged: in scatters, masks, ``lerp``. Here
these ops have kernels on the dispatch keys of ``torch.autocast``, beside torch's own for ``cat`` and
``scatter_add``. So they see every call, from C++ and in compiled graphs too, and cost other ops
nothing. An op that writes to its input casts the others to the input's dtype; any other op casts to
the widest. Outside of the regions of ampbridge a kernel passes its arguments on as they are.

One op, ``binary_cross_entropy``, has torch's own kernel on CUDA's key, which forbids it. In a region it
runs in float32 there, as the lists say and as on the CPU; elsewhere it stays forbidden.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from ampbridge_torch import _private
from ampbridge_torch.autocast.mode import cast_to, widest
from ampbridge_torch.autocast.rules import has_lists_of_cuda
from ampbridge_torch.autocast.simulation import CASTABLE, tensors_in
from ampbridge_torch.devices import DeviceType

# By aten name; tests/torch/test_merging.py holds them against torch's own database of ops.
OPS = (
    *("index_add", "index_copy", "index_put", "index_reduce", "put", "masked_scatter"),
    *("scatter", "scatter_add", "scatter_reduce", "_unsafe_masked_index_put_accumulate"),
    *("lerp", "heaviside", "isclose", "allclose", "complex", "meshgrid", "cartesian_prod"),
    *("addmm", "addbmm", "baddbmm", "addmv", "sparse_sampled_addmm", "_chunk_cat"),
    *("linalg_multi_dot", "linalg_lu_solve", "linalg_ldl_solve", "linalg_solve_ex"),
    *("embedding_bag", "_histogramdd_from_bin_tensors", "_sparse_mm_reduce_impl"),
)


class _Here(threading.local):
    merges = False


here = _Here()
"""``here.merges``: whether the innermost region of this thread lets ops take tensors of two dtypes."""

registered: set[DeviceType] = set()
"""The types of devices that have the kernels."""

_registering = threading.Lock()
_library = torch.library.Library("aten", "IMPL")


def register(types: tuple[DeviceType, ...]) -> None:
    """Register the kernels for devices of these types, once, for as long as the process lives."""
    with _registering:  # threads may open their first regions at the same time
        for device_type in types:
            if device_type not in registered:
                _register(device_type)
                registered.add(device_type)


def _register(device_type: str) -> None:
    _private.registered_for_autocast(device_type)  # remembered as torch has it, without these
    key = _private.autocast_key(device_type)
    if has_lists_of_cuda(device_type):
        forbidden = torch.ops.aten.binary_cross_entropy.default
        if _private.has_kernel(forbidden, key):
            kernel = partial(_in_float32, device_type, _private.past(key, forbidden))
            with warnings.catch_warnings():  # torch's, of a kernel in the place of its own
                warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")
                _library.impl(forbidden, kernel, key, with_keyset=True)
    for overload in _overloads():
        if not _private.has_kernel(overload, key):
            kernel = partial(_merge, overload, device_type, _private.past(key, overload))
            _library.impl(overload, kernel, key, with_keyset=True)


@cache
def _overloads() -> tuple[Any, ...]:
    """The overloads of ``OPS``, in place and not; torch has some of them in one form alone."""
    packets = [getattr(torch.ops.aten, name + ending, None) for name in OPS for ending in ("", "_")]
    return tuple(
        getattr(packet, overload)
        for packet in packets
        if packet is not None
        for overload in packet.overloads()
        if "out" not in overload and overload != "hacked_twin"  # TorchScript's, of no kernel
    )


# By torch's own words (aten/src/ATen/autocast_mode.h).
_FORBIDDEN = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
    "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits\n"
    "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
    "safe to autocast."
)


def _in_float32(
    device_type: str, run: Callable[..., Any], keys: Any, *args: Any, **kwargs: Any
) -> Any:
    if not here.merges:
        raise RuntimeError(_FORBIDDEN)
    args = cast_to(args, torch.float32, device_type)
    kwargs = {name: cast_to(value, torch.float32, device_type) for name, value in kwargs.items()}
    return run(keys, *args, **kwargs)


def _merge(
    op: Any, device_type: str, run: Callable[..., Any], keys: Any, *args: Any, **kwargs: Any
) -> Any:
    if here.merges:
        tensors = tensors_in([*args, *kwargs.values()], CASTABLE)
        if any(tensor.dtype != tensors[0].dtype for tensor in tensors):
            written = _private.written(op, args, kwargs)
            dtype = written[0].dtype if written else widest(tensors)
            args = cast_to(args, dtype, device_type)
            kwargs = {name: cast_to(value, dtype, device_type) for name, value in kwargs.items()}
    return run(keys, *args, **kwargs)
