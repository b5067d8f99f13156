"""Unscale, check, clip, step or skip; and the loss scale on a device."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn, optim

from ampbridge.adapters.backend import (
    FINITE,
    INF,
    NAN,
    RaisedAfterStep,
    Scalar,
    ScaleStore,
    worst_on_host,
)
from ampbridge.adapters.interrupts import LAST_OF_SEVERAL
from ampbridge.errors import UnsupportedError
from ampbridge.scaling.scale_rule import HostStore, ScalerConfig, ScaleState, counted, next_state
from ampbridge_torch import _private
from ampbridge_torch.autocast.casting import run_outside
from ampbridge_torch.autocast.simulation import LOW_DTYPES
from ampbridge_torch.model.master_updates import updates_of
from ampbridge_torch.model.master_weights import master_of
from ampbridge_torch.step import ranks
from ampbridge_torch.step.compiling import present_graphs
from ampbridge_torch.step.gradients import grad_of, parameters, store

_LARGEST_FLOAT32 = torch.finfo(torch.float32).max
_LARGE = 10_000  # elements, from which on a sum is faster than torch's kernel
_ZERO, _ONE = torch.zeros((), device="cpu"), torch.ones((), device="cpu")

_traits = attrgetter("__class__", "dtype", "is_cpu", "layout", "requires_grad")
_PLAIN = {(Tensor, torch.float32, True, torch.strided, False)}
"""The traits of gradients that a kernel of the CPU may read as they are."""


# -- unscale and check


def unscale(grads: Sequence[Tensor | None], scale: Scalar) -> tuple[list[Tensor | None], Scalar]:
    """See ``Backend.unscale``; it does not wait for the device."""
    return unscale_for(None, grads, scale)


def unscale_for(
    optimizer: optim.Optimizer | None, grads: Sequence[Tensor | None], scale: Scalar
) -> tuple[list[Tensor | None], Scalar]:
    """``unscale``, which waits for the device unless the optimizer's kernel decides there.

    In place, in one fused pass for each device and dtype; 16-bit gradients, which come as values, are
    widened to new float32 tensors first.
    """
    present = [grad for grad in grads if grad is not None]
    if set(map(_traits, present)) == _PLAIN:
        if scale is None and _are_surely_finite(present):
            return list(grads), FINITE
        return list(grads), _unscale_group(present, scale, True)
    waits = optimizer is not None and not _private.decides_by_itself(optimizer)
    with torch.no_grad(), LAST_OF_SEVERAL:
        wide = list(grads)
        for place, grad in enumerate(grads):
            if grad is not None and grad.dtype is not torch.float32:
                wide[place] = grad.float() if grad.dtype in LOW_DTYPES else grad.resolve_conj()
        return wide, worst(
            [_unscale_group(each, scale, waits) for each in _by_device_and_dtype(wide)]
        )


def _by_device_and_dtype(grads: Iterable[Tensor | None]) -> Iterable[list[Tensor]]:
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for grad in grads:
        if grad is not None:
            values = _private.sparse_values(grad) if grad.is_sparse else grad
            if values.is_complex():
                values = torch.view_as_real(values)
            groups[values.device, values.dtype].append(values)
    return groups.values()


def _unscale_group(grads: list[Tensor], scale: Scalar, waits: bool) -> Scalar:
    """Unscale gradients of one device and dtype in place, and look for inf and NaN.

    Args:
        waits: read the overflow, once where all is finite. Then it is an int, and inf is told from
            NaN only where there is either. Otherwise it is an int on the CPU and a float32 tensor
            elsewhere, and telling them takes four more kernels, each over all gradients.
    """
    device = grads[0].device
    not_finite = torch.zeros((), device=device)
    if isinstance(scale, Tensor):  # 1/scale in double, rounded once, as on the host
        inverse = _widest(scale.to(device)).reciprocal().float()
    else:
        inverse = torch.full((), 1.0 if scale is None else 1.0 / scale, device=device)
    _check_and_unscale(grads, not_finite, inverse)
    if device.type != "cpu" and not waits:
        return not_finite * (NAN - _has_inf(grads))  # one less is INF; one product is FINITE
    if not not_finite.item():
        return FINITE
    if device.type != "cpu":
        return INF if _has_inf(grads) else NAN
    # Each of them, whatever the first ones say: ranks that hold shards have to ask alike.
    has_inf = [bool(ranks.set_on_any(grad.isinf().any())) for grad in grads]
    return INF if any(has_inf) else NAN


def _check_and_unscale(grads: list[Tensor], not_finite: Tensor, inverse: Tensor) -> None:
    """Torch's kernel for ``GradScaler``; on an extension's device that lacks it, ops that all have."""
    try:
        _private.lookup("_amp_foreach_non_finite_check_and_unscale_")(grads, not_finite, inverse)
    except NotImplementedError:
        for grad in grads:
            not_finite.logical_or_(grad.isfinite().all().logical_not())
            grad.mul_(inverse)


def _widest(value: Tensor) -> Tensor:
    """``value`` in float64, if the device has it (MPS has not)."""
    return value.double() if _has_float64(value.device.type) else value


@cache
def _has_float64(device_type: str) -> bool:
    try:
        torch.zeros((), dtype=torch.float64, device=device_type)
    except (TypeError, RuntimeError):
        return False
    return True


def _are_surely_finite(grads: list[Tensor]) -> bool:
    """Whether all of these plain ones are finite for sure. A sum may overflow where none does.

    Torch's kernel checks many small gradients in one call, and a sum reads a large one faster: from
    some 10,000 elements on (measured by ``bench/check.py``).
    """
    small, large = grads, []
    if max(map(Tensor.numel, grads)) >= _LARGE:
        small = [grad for grad in grads if grad.numel() < _LARGE]
        large = [grad for grad in grads if grad.numel() >= _LARGE]
    if small:
        not_finite = _ZERO.clone()  # a third of the time of torch.zeros
        _check_and_unscale(small, not_finite, _ONE)
        if not_finite.item():
            return False
    return not large or all(math.isfinite(grad.sum().item()) for grad in large)


def _has_inf(grads: list[Tensor]) -> Tensor:
    """1 if any element is inf, NaN beside it or not, else 0; without waiting for the device.

    Of ``|x| - largest`` the sign is 1 for inf alone: it is 0 for NaN, unlike a norm or a maximum.
    """
    excess = _private.lookup("_foreach_abs")(grads)
    _private.lookup("_foreach_sub_")(excess, _LARGEST_FLOAT32)
    _private.lookup("_foreach_sign_")(excess)
    largest = torch.stack(_private.lookup("_foreach_max")(excess)).amax()
    return ranks.set_on_any(largest).clamp(min=0)


def worst(found: Sequence[Scalar]) -> Scalar:
    """The overflow on all devices together; see ``Backend.worst``."""
    if len(found) == 1:
        return found[0]
    on_device = [kind for kind in found if isinstance(kind, Tensor)]
    if not on_device:
        return worst_on_host(found)
    device = on_device[0].device
    stacked = torch.stack([torch.as_tensor(kind, device=device) for kind in found])
    inf_or_nan = torch.where((stacked == INF).any(), INF, NAN)
    return torch.where((stacked != FINITE).any(), inf_or_nan, FINITE)


# -- clip


@torch.no_grad()
def clip(grads: Sequence[Tensor | None], max_norm: float) -> tuple[list[Tensor | None], Tensor]:
    """``torch.nn.utils.clip_grad_norm_`` on values, in place. Does not wait for a device."""
    clipped, present = _coalesced(grads)
    norm = nn.utils.get_total_norm(present)
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for group in _by_device_and_dtype(present):
        _private.lookup("_foreach_mul_")(group, factor.to(group[0].device))
    return clipped, norm


@torch.no_grad()
def clip_values(grads: Sequence[Tensor | None], limit: float) -> list[Tensor | None]:
    """``torch.nn.utils.clip_grad_value_`` on values, in place."""
    clipped, present = _coalesced(grads)
    for group in _by_device_and_dtype(present):
        _private.lookup("_foreach_clamp_min_")(group, -limit)
        _private.lookup("_foreach_clamp_max_")(group, limit)
    return clipped


def _coalesced(grads: Sequence[Tensor | None]) -> tuple[list[Tensor | None], list[Tensor]]:
    """The gradients, and the values of those that there are.

    Sparse ones are coalesced (torch's own functions refuse them): of an index that occurs twice, the sum
    counts.
    """
    clipped = [g.coalesce() if g is not None and g.is_sparse else g for g in grads]
    return clipped, [
        _private.sparse_values(g) if g.is_sparse else g for g in clipped if g is not None
    ]


# -- step or skip


def step(
    optimizer: optim.Optimizer, parameters: Sequence[Tensor], grads: Sequence[Tensor | None]
) -> None:
    """See ``Backend.step``; ``.grad`` is as before.

    Masters are handed their gradients; other parameters have theirs in ``.grad`` for the step.
    """
    owners, updates, graphs = parameters, updates_of(optimizer), present_graphs.get()
    given: dict[int, Tensor | None] = {}
    if updates is not None:
        of_each = dict(zip(owners, grads, strict=True))
        with_master = [owner for owner in owners if master_of(owner) is not None]
        given = {id(owner): of_each.pop(owner) for owner in with_master}
        owners, grads = list(of_each), list(of_each.values())
    before, lent = list(map(grad_of, owners)), list(grads)
    for place, (owner, grad) in enumerate(zip(owners, grads, strict=True)):
        if grad is not None and grad.dtype is not owner.dtype:
            lent[place] = grad.to(owner.dtype)
    try:
        store(owners, lent)
        if updates is not None:
            run_outside(updates.step, optimizer, given)
        elif graphs is not None:
            run_outside(graphs.step, optimizer)
        else:
            run_outside(optimizer.step)
    except Exception as error:
        if _private.has_stepped(error):
            raise RaisedAfterStep(error) from None
        if _ABOUT_SECOND_ORDER.search(str(error)):
            # The gradients of a scaled loss would scale what it computes from them.
            msg = (
                f"{type(optimizer).__name__} differentiates the gradients that it steps with, for second "
                "derivatives. Those of train_step have no graph, nor have those of masters at O2.\n"
                "Hint: with amp.autocast('O1:bfloat16'): loss = loss_fn(model, x, y)  # and without a "
                "scaler: loss.backward(create_graph=True); optimizer.step(); optimizer.zero_grad()"
            )
            raise UnsupportedError(msg) from error
        raise
    finally:
        store(owners, before)
        torch.clear_autocast_cache()  # of the weights of before, if a region around goes on


_ABOUT_SECOND_ORDER = re.compile(
    "does not require grad and does not have a grad_fn|to not have been used in the graph"
)


def step_unless(
    optimizer: Any, owners: Sequence[Tensor], grads: Sequence[Tensor | None], overflow: Tensor
) -> Tensor:
    """Torch's contract with its fused optimizers: they read these attributes during ``step``."""
    optimizer.grad_scale, optimizer.found_inf = None, overflow.sign().float()
    try:
        step(optimizer, owners, grads)
    finally:
        del optimizer.grad_scale, optimizer.found_inf
    return overflow == FINITE


# -- the scale on a device


def scale_store(state: ScaleState, like: Any) -> ScaleStore:
    """On the host for a model, optimizer or tensor on the CPU; on its device otherwise."""
    if isinstance(like, (nn.Module, optim.Optimizer)):
        like = next(iter(parameters(like)), None)
    if like is None or like.device.type == "cpu":
        return HostStore(state)
    return DeviceStore(state, like.device)


class _DeviceState(ScaleState):
    __slots__ = ()

    def on_host(self) -> ScaleState:
        """As Python numbers, by one wait for the device."""
        counts = [count.int() for count in self[1:] if isinstance(count, Tensor)]
        scale, *read = torch.stack([self.scale.view(torch.int32), *counts]).cpu()
        known = (read.pop(0).item() if isinstance(n, Tensor) else n for n in self[1:])
        return ScaleState(scale.view(torch.float32).item(), *known)


class DeviceStore:
    """The scaler's state in tensors; a count is a number where the host knows it.

    Tensors are replaced, never changed: what was read stays as it is.
    """

    def __init__(self, state: ScaleState, device: torch.device) -> None:
        self._device = device
        self.write(state)

    def read(self) -> ScaleState:
        return self._state

    def write(self, state: ScaleState) -> None:
        counts = (torch.tensor(int(n), dtype=torch.int32, device=self._device) for n in state[1:])
        scale = torch.tensor(float(state.scale), dtype=torch.float32, device=self._device)
        self._state: ScaleState = _DeviceState(scale, *counts)

    @torch.no_grad()
    def update(self, overflow: Scalar, config: ScalerConfig) -> ScaleState:
        if _kernel_follows(config):
            with suppress(NotImplementedError):  # of an extension's device, which has no kernel
                self._state = _next_by_kernel(self._state, overflow, config)
                return self._state
        # In double and rounded once, as on the host.
        state = self._state._replace(scale=_widest(self._state.scale))
        state = next_state(state, overflow, config, _where)
        self._state = state._replace(scale=state.scale.float())
        return self._state


def _kernel_follows(config: ScalerConfig) -> bool:
    """Whether torch's kernel, with the bounds put behind it, is the rule.

    It backs off at each overflow, counts each finite step, and keeps a scale that would grow beyond
    float32: which is not what one that is to be clamped does.
    """
    return (
        config.dynamic
        and config.backoff_interval == 1  # then all ways to count overflows are one
        and config.growth_delay == 0
        and (
            config.at_max_scale == "keep"
            or config.max_scale * config.growth_factor <= _LARGEST_FLOAT32
        )
        and _private.lookup("_amp_update_scale_") is not None
    )


def _next_by_kernel(state: ScaleState, overflow: Tensor, config: ScalerConfig) -> ScaleState:
    scale, good, found = state.scale.clone(), state.good, overflow
    # Where the host knows a number, torch.full makes a tensor of it: torch.tensor would wait.
    if isinstance(good, Tensor):
        good = good.clone()
    else:
        good = torch.full((), good, dtype=torch.int32, device=scale.device)
    if not isinstance(found, Tensor):
        found = torch.full((), float(found), device=scale.device)
    factors = config.growth_factor, config.backoff_factor
    _private.lookup("_amp_update_scale_")(
        scale, good, found.float(), *factors, config.growth_interval
    )
    if config.at_max_scale == "keep":
        scale = torch.where(scale > config.max_scale, state.scale, scale)
        scale.clamp_(min=config.min_scale)
    else:
        scale.clamp_(config.min_scale, config.max_scale)
    return counted(state, overflow, config, _where)._replace(scale=scale, good=good)


def _where(condition: Tensor | bool, a: Any, b: Any) -> Any:
    """The device's choice, or the host's where it knows the condition: that takes no kernel."""
    if isinstance(condition, Tensor):
        return torch.where(condition, a, b)
    return a if condition else b
