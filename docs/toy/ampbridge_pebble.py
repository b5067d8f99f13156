"""The adapter of Pebble: what a step in mixed precision needs, and no role.

In an installed package the entry point ``pebble = "ampbridge_pebble:PebbleBackend"`` in the group
``ampbridge.backends`` would lead to it; ``amp.register_backend`` does so in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, final

import numpy as np
import pebble

from ampbridge.adapters import kept_calls
from ampbridge.adapters.arguments import check_dependence, check_parts, check_that_some_train
from ampbridge.adapters.backend import (
    FINITE,
    INF,
    NAN,
    Backend,
    Decoration,
    Kind,
    Layer,
    is_normalization,
)
from ampbridge.adapters.interception import Interception, Site
from ampbridge.adapters.nested import map_leaves
from ampbridge.adapters.outputs import warn_of_low_values_inside
from ampbridge.errors import UnsupportedError
from ampbridge.policies import function_ops
from ampbridge.policies.effects import refuse_native_lists, warn_of_rules_without_effect
from ampbridge.policies.op_table import Category
from ampbridge.policies.policy import POLICIES_REMEMBERED, Policy

Dtype = np.dtype[Any]

FLOAT16, BFLOAT16 = pebble.LOW
DTYPES: Mapping[str, Dtype] = {
    "float16": FLOAT16,
    "bfloat16": BFLOAT16,
    "float32": pebble.FLOAT32,
}
CASTABLE = frozenset(DTYPES.values())
OPS = pebble.OPS.keys() - {"cast"}  # a cast goes where the caller says


# -- the region: ops are cast by their rules


class Rules(NamedTuple):
    """What a policy says of each op of Pebble, and of the Python functions that are ops."""

    low: Dtype
    ops: Mapping[str, Category]
    functions: Mapping[str, Category]


def rules_of(policy: Policy) -> Rules:
    """The rules of ``policy``, which are made once for each."""
    return _rules_of(policy, function_ops.rules_of(policy))


@lru_cache(POLICIES_REMEMBERED)
def _rules_of(policy: Policy, functions: function_ops.Rules) -> Rules:
    if policy.level != "O0":
        refuse_native_lists(policy, "Pebble")
        warn_of_rules_without_effect(
            policy, "pebble", "Pebble", "pebble", lambda op: op.name in OPS
        )
    return Rules(DTYPES[policy.dtype], {op: policy.category(op) for op in OPS}, dict(functions))


class Region:
    """What holds inside of a region.

    Attributes:
        rules: those of its policy.
        call: the call of a decorated model that is in effect, if there is one.
        kept: the ids of layers that run in float32.
    """

    def __init__(
        self, rules: Rules, call: ModelCall | None = None, kept: frozenset[int] = frozenset()
    ) -> None:
        self.rules, self.call, self.kept = rules, call, kept
        if call is not None:
            self.kept = kept.union(map(id, call.kept_modules()))
        self._low = {id(parameter) for parameter in call.low} if call is not None else set()
        self._copies: dict[int, pebble.Tensor] = {}

    def present(self, x: Any) -> Any:
        """What ops read for ``x``: one low copy of a parameter, so that its gradient is rounded once."""
        if id(x) not in self._low:
            return x
        if id(x) not in self._copies:
            self._copies[id(x)] = _cast(x, self.rules.low)
        return self._copies[id(x)]


def _cast(x: Any, dtype: Dtype) -> Any:
    """``x`` in ``dtype``; float64, integers and what is no tensor as they are."""
    if not isinstance(x, pebble.Tensor) or x.dtype not in CASTABLE or x.dtype == dtype:
        return x
    return _RUN("cast", x, dtype=dtype)


def _target(rules: Rules, op: str, inputs: Sequence[Any]) -> Dtype | None:
    """The dtype to which the inputs of an op are cast; None where they stay as they are."""
    dtypes = {x.dtype for x in inputs if isinstance(x, pebble.Tensor)}
    floating = dtypes & CASTABLE
    if op not in rules.ops or not floating or pebble.FLOAT64 in dtypes:
        return None
    if rules.ops[op] == "promote":
        return floating.pop() if len(floating) == 1 else pebble.FLOAT32
    return rules.low if rules.ops[op] == "allow" else pebble.FLOAT32


def _run(op: str, *inputs: Any, **options: Any) -> Any:
    """In place of ``pebble.run`` while a region is open, in whatever thread."""
    region = _regions.active.get()
    if region is None:
        return _RUN(op, *inputs, **options)
    read = [region.present(x) for x in inputs]
    target = _target(region.rules, op, read)
    return _RUN(op, *(x if target is None else _cast(x, target) for x in read), **options)


def _call(module: pebble.Module, *inputs: Any) -> Any:
    """In place of ``pebble.Module.__call__`` while a region is open."""
    return (module.around or _forward)(module, *inputs)


def _forward(module: pebble.Module, *inputs: Any) -> Any:
    """``module.forward``, in float32 if the layer is kept."""
    region = _regions.active.get()
    if region is None or id(module) not in region.kept:
        return module.forward(*inputs)
    kept_calls.note(module)
    inputs = map_leaves(lambda x: _cast(x, pebble.FLOAT32), inputs)
    with _regions.paused(Region(rules_of(Policy("O0")), kept=region.kept)):
        return module.forward(*inputs)


_RUN = pebble.run
_SITES = (
    Site(pebble, "run", _RUN, _run),
    Site(pebble.Module, "__call__", pebble.Module.__call__, _call),
)
_regions: Interception[Region] = Interception("ampbridge_pebble rules", lambda: _SITES)


@contextmanager
def _open(policy: Policy, call: ModelCall | None = None) -> Iterator[None]:
    rules = rules_of(policy)
    with function_ops.standing(rules.functions), _regions.region(Region(rules, call)):
        yield


@function_ops.answered_by
def _function_op(name: str, function: Callable[..., Any]) -> Callable[..., Any] | None:
    """How a Python function runs that the policy of the region allows or denies: as one op."""
    region = _regions.active.get()
    if region is None or name not in region.rules.functions:
        return None
    low, present = region.rules.functions[name] == "allow", region.present
    dtype = region.rules.low if low else pebble.FLOAT32

    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = map_leaves(lambda x: _cast(present(x), dtype), (args, kwargs))
        with _regions.paused():
            return function(*args, **kwargs)

    return call


# -- a decorated model


@dataclass(frozen=True, eq=False)
class ModelCall:
    """What a call of a decorated model does. ``low`` are the parameters that are read in low precision.

    The parameters themselves stay float32, and are the masters. ``optimizers`` call ``round``.
    """

    decoration: Decoration
    low: list[pebble.Parameter]
    optimizers: list[pebble.Optimizer]

    def __call__(self, module: pebble.Module, *inputs: Any) -> Any:
        region, policy = _regions.active.get(), self.decoration.policy
        casts = region is not None and region.rules.low != pebble.FLOAT32
        if not (casts or self.decoration.standalone):
            return module.forward(*inputs)
        with self.in_effect():
            outputs = _forward(module, *inputs)
        outputs = map_leaves(lambda x: _cast(x, DTYPES[policy.output_dtype]), outputs)
        warn_of_low_values_inside(outputs, policy.output_dtype, _dtype_name)
        return outputs

    def in_effect(self) -> AbstractContextManager[Any]:
        """Parameters are read in low precision, and layers are kept."""
        region = _regions.active.get()
        if region is not None and region.call is self:
            return nullcontext()
        if region is None or self.decoration.standalone:
            return _open(self.decoration.policy, self)
        return _regions.paused(Region(region.rules, self, region.kept))

    def kept_modules(self) -> Iterator[pebble.Module]:
        """The kept layers, and those below them."""
        return (part for layer in self.decoration.kept for _, part in layer.modules())

    def round(self) -> None:
        """Without masters: what an optimizer calls after each of its steps."""
        for parameter in self.low:
            low = _cast(parameter, DTYPES[self.decoration.policy.dtype])
            parameter.values = low.values.astype(parameter.dtype)


def _dtype_name(x: Any) -> str | None:
    return x.dtype.name if isinstance(x, pebble.Tensor) else None


def _call_of(model: pebble.Module) -> ModelCall | None:
    around = vars(model).get("around")
    return around if isinstance(around, ModelCall) else None


def _check_decoration(decoration: Decoration, optimizer: pebble.Optimizer | None) -> None:
    policy = decoration.policy
    if decoration.save_dtype not in (None, "float32"):
        msg = f"save_dtype={decoration.save_dtype!r}: Pebble's modules have no state_dict.\n"
        raise UnsupportedError(msg + "Hint: save_dtype=None")
    if policy.variable_dtype != "float32" and optimizer is None:
        msg = f"{policy!r}: without master weights parameters are rounded after each optimizer step.\n"
        raise UnsupportedError(
            msg + "Hint: model, optimizer = amp.decorate(model, optimizer, policy)"
        )


# -- the methods of the protocol


@final
class PebbleBackend(Backend):
    name = "pebble"
    compiles_by_default = False
    examples: Mapping[str, str] = {
        "model": "model = pebble.Linear(4, 2)",
        "optimizer": "optimizer = pebble.Optimizer(model.parameters(), rate=0.1)",
        "float32 model": "model.weight = pebble.Parameter(model.weight.values.astype('float32'))",
        "loss_fn": "def loss_fn(model, x, y): return criterion(model(x), y)",
    }

    def kind(self, obj: object) -> Kind | None:
        if isinstance(obj, pebble.Module):
            return "model"
        return "optimizer" if isinstance(obj, pebble.Optimizer) else None

    def autocast(self, policy: Policy) -> AbstractContextManager[None]:
        self.execution(policy)
        return _open(policy)

    def cast(self, x: Any, dtype: str) -> Any:
        return _cast(x, DTYPES[dtype])

    noting_kept_calls = staticmethod(kept_calls.noting)

    def layers(self, model: Any) -> list[Layer]:
        found: dict[int, Layer] = {}
        for name, module in model.modules():
            shapes = {key: p.shape for key, p in module.own_parameters().items()}
            found.setdefault(id(module), Layer(name, type(module).__name__, module, shapes))
        return list(found.values())

    def decorate(self, model: Any, optimizer: Any, decoration: Decoration) -> None:
        policy = decoration.policy
        self.execution(policy)
        rules_of(policy)
        check_parts(model.modules(), lambda part: self.decoration(part, None), policy)
        _check_decoration(decoration, optimizer)
        wide = {p for layer in decoration.kept for p in layer.parameters()}
        for layer in self.layers(model):
            if is_normalization(layer, (pebble.LayerNorm,)):
                wide.update(layer.layer.own_parameters().values())
        low = [p for p in model.parameters() if p not in wide] if policy.level == "O2" else []
        model.around = ModelCall(decoration, low, [])
        if policy.variable_dtype != "float32":
            model.around.round()
            self.serve(model, optimizer)

    def serve(self, model: Any, optimizer: Any) -> None:
        call = _call_of(model)
        if call is not None and call.decoration.policy.variable_dtype != "float32":
            optimizer.after_step.append(call.round)
            call.optimizers.append(optimizer)

    def served(self, model: Any) -> list[Any]:
        call = _call_of(model)
        return [] if call is None else [*call.optimizers]

    def undecorate(self, model: Any, optimizer: Any) -> None:
        call = _call_of(model)
        if call is None:
            return
        del model.around
        for each in call.optimizers:
            each.after_step.remove(call.round)

    def decoration(self, model: Any, optimizer: Any) -> Decoration | None:
        call = _call_of(model)
        if call is None:
            return None
        rounds = call.decoration.policy.variable_dtype != "float32"
        is_its = not rounds or optimizer is None or call.round in optimizer.after_step
        return call.decoration if is_its else None

    def parameters(self, owner: Any) -> list[pebble.Parameter]:
        return owner.parameters() if isinstance(owner, pebble.Module) else owner.parameters

    def gradients(
        self,
        loss_fn: Callable[..., Any],
        model: Any,
        batch: Sequence[Any],
        policy: Policy,
        factor: Any,
        total: Sequence[Any] | None,
        optimizer: Any = None,
    ) -> tuple[pebble.Tensor, Any, list[Any]]:
        parameters = self.parameters(model if optimizer is None else optimizer)
        check_that_some_train(parameters, "self.weight = pebble.Parameter(values)")
        call = _call_of(model)
        with self.autocast(policy), nullcontext() if call is None else call.in_effect():
            loss, aux = loss_fn(model, *map_leaves(_as_tensor, tuple(batch)))
        loss = _cast(loss, pebble.FLOAT32)
        grads: list[Any] = pebble.gradients(loss, parameters, 1.0 if factor is None else factor)
        check_dependence(grads)
        if total is not None:
            grads = self.add(total, grads)
        return _detached(loss), map_leaves(_detached, aux), grads

    def unscale(self, grads: Sequence[Any], scale: Any) -> tuple[list[Any], int]:
        inverse = np.float32(1.0 if scale is None else 1.0 / float(scale))
        unscaled = [g if g is None else pebble.Tensor(_wide(g) * inverse) for g in grads]
        arrays = [g.values for g in unscaled if g is not None]
        if all(np.isfinite(each).all() for each in arrays):
            return unscaled, FINITE
        return unscaled, INF if any(np.isinf(each).any() for each in arrays) else NAN

    @np.errstate(invalid="ignore")
    def clip(self, grads: Sequence[Any], max_norm: float) -> tuple[list[Any], float]:
        squares = (np.square(g.values, dtype=np.float64).sum() for g in grads if g is not None)
        norm = float(np.sqrt(sum(squares)))
        factor = np.float32(max_norm / (norm + 1e-6) if norm > max_norm else 1.0)
        return [g if g is None else pebble.Tensor(g.values * factor) for g in grads], norm

    def clip_values(self, grads: Sequence[Any], limit: float) -> list[Any]:
        return [g if g is None else pebble.Tensor(g.values.clip(-limit, limit)) for g in grads]

    def step(self, optimizer: Any, parameters: Sequence[Any], grads: Sequence[Any]) -> None:
        gradient_of = dict(zip(parameters, grads, strict=True))
        optimizer.step([gradient_of.get(p) for p in optimizer.parameters])


def _as_tensor(x: Any) -> Any:
    """A NumPy array of the batch as a tensor. NumPy makes float64 arrays unasked; they become float32."""
    if not isinstance(x, (np.ndarray, np.generic)):
        return x
    return pebble.Tensor(x.astype(np.float32) if x.dtype == pebble.FLOAT64 else x)


def _detached(x: Any) -> Any:
    return pebble.Tensor(x.values) if isinstance(x, pebble.Tensor) else x


def _wide(grad: pebble.Tensor) -> Any:
    return grad.values if grad.dtype == pebble.FLOAT64 else grad.values.astype(np.float32)
