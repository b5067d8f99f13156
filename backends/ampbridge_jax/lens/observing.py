"""Seeing what runs: each op as it passes through the region's trace, with its gradients.

The arrays that go into an op and come out of it pass through functions that change nothing forward, and
report the gradient backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.extend import core as jex

from ampbridge.adapters.backend import Array, Model
from ampbridge.adapters.interception import INHERITED, Interception, Site
from ampbridge.adapters.nested import leaves, map_leaves
from ampbridge.adapters.observation import Kernel, Observer, OpCall, Operand
from ampbridge.adapters.scoped import Scoped
from ampbridge.policies import function_ops
from ampbridge_jax._private import scopes as scopes_here
from ampbridge_jax._private import value_of
from ampbridge_jax.autocast.rules import CASTABLE, MOVES, UNTOUCHED, Rules, canonical_names
from ampbridge_jax.autocast.trace import HIGHER, RECOMPUTED, evaluated, is_of_jax, watch
from ampbridge_jax.autocast.whole_ops import active_rules, regions, under_rules
from ampbridge_jax.model.kinds import named_modules

_FLOATING = CASTABLE | {jnp.dtype("float64")}

_MOVES_ONLY = MOVES | {
    "broadcast_in_dim",
    "concatenate",
    "dynamic_slice",
    "expand_dims",
    "gather",
    "iota",
    "pad",
    "reshape",
    "rev",
    "slice",
    "split",
    "squeeze",
    "stop_gradient",
    "symbolic_zeros",
    "transpose",
}

_layer: Scoped[str] = Scoped("ampbridge_jax layer", "")
_SCOPE = "ampbridge layer "
"""Ahead of the names of layers, in the scopes of ops that are traced inside of them."""


@contextmanager
def observe(model: Model, observer: Observer, *, gradients: bool) -> Iterator[None]:
    """See ``Backend.observe``."""
    seer, rules = Watch(observer, gradients), active_rules()
    functions = function_ops.watched(seer.function)
    region = regions.region(rules)  # its replacements come first: names stand on top of them
    with (
        watch.during(seer),
        functions,
        region,
        _named_calls(model),
        under_rules(rules or UNTOUCHED),
    ):
        yield


# -- the layer that runs


def _named_calls(model: Model) -> Any:
    """A block in which the calls of the model's modules say their names."""
    names = {id(module): name for name, module in named_modules(model)}
    kinds = {type(module) for _, module in named_modules(model)}
    sites = [_site(kind, names) for kind in kinds if hasattr(kind, "__call__")]  # noqa: B004
    calls: Interception[None] = Interception("ampbridge_jax names of layers", lambda: sites)
    return calls.region(None)


def _site(kind: Any, names: dict[int, str]) -> Site:
    call = kind.__call__

    @wraps(call)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        name = names.get(id(self)) if watch.get() is not None else None
        if name is None or type(self) is not kind:
            return call(self, *args, **kwargs)
        with _layer.during(name), jax.named_scope(f"{_SCOPE}{name}"):
            return call(self, *args, **kwargs)

    return Site(kind, "__call__", vars(kind).get("__call__", INHERITED), __call__)


def _present_layer() -> str:
    """The layer that runs; of an op that was traced before, the layer that ran then."""
    scopes = (scope for scope in reversed(scopes_here()) if scope.startswith(_SCOPE))
    return next((scope.removeprefix(_SCOPE) for scope in scopes), _layer.get())


# -- ops


class Watch:
    """Runs and reports the ops of one forward pass."""

    def __init__(self, observer: Observer, gradients: bool) -> None:
        self._observer, self._gradients = observer, gradients
        self._numbers = count()

    def knows(self, name: str) -> bool:
        """Whether a function of that name is a canonical op."""
        return name in canonical_names()

    def seen(self, trace: Any, rules: Rules, primitive: Any, args: Any, params: Any) -> Any:
        """The result of an op that is reported; None for what is not one."""
        name = primitive.name
        closed = None
        if name in ("jit", "pjit"):
            closed, name = params["jaxpr"], rules.called(params["name"], args)
        elif name in RECOMPUTED:
            closed = jex.ClosedJaxpr(params["jaxpr"], ())
        if closed is not None and not (self.knows(name) and is_of_jax(closed)):
            return evaluated(closed, rules)(*args)  # op by op, of whatever is compiled
        if name in HIGHER:
            with jax.disable_jit():  # each turn by itself, of loops that were traced before
                return HIGHER[name](rules, args, params)
        if name in _MOVES_ONLY:
            return None

        def run(*args: Any) -> Any:
            with watch.during(None):
                return trace.process_primitive(primitive, args, params)

        return self.op(name, rules, run, args)

    def op(self, name: str, rules: Rules, run: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Run and report an op by JAX's name."""
        dtype = None if rules is UNTOUCHED else rules.dtype(rules.category(name), args)
        op = canonical_names().get(name, f"jax:{name}")
        return self.whole(op, name, dtype, lambda args: run(*args), args)

    def function(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Any,
    ) -> Any:
        """Run and report a Python function that the policy lists, as one op."""
        rules = active_rules()
        dtype = None if rules is None else rules.of_function(name)

        def run(given: Any) -> Any:
            with under_rules(rules or UNTOUCHED):
                return function(*given[0], **given[1])

        return self.whole(name, name, dtype, run, (args, kwargs))

    def whole(
        self, op: str, kernel: str, dtype: Any, run: Callable[[Any], Any], inputs: Any
    ) -> Any:
        """Run and report an op that computes in ``dtype`` (None: in that of its inputs)."""
        floats = [x for x in leaves(inputs) if _is_floating(x)]
        if not floats or not all(map(_has_values, floats)):
            return run(inputs)
        number, call, observer = next(self._numbers), list[OpCall](), self._observer
        if dtype is None or all(x.dtype == jnp.float64 for x in floats):
            dtype = next((x for x in floats if jnp.ndim(x)), floats[0]).dtype
        operands = [_operand(x) for x in floats]
        if self._gradients:
            inputs = self._passing(inputs, lambda *left: observer.gradient_left(call[0], *left))
        with watch.during(None):
            result = run(inputs)
        ran_in = str(dtype)
        call.append(OpCall(number, op, _present_layer(), ran_in, (Kernel(kernel, ran_in),), None))
        outputs = [_operand(x) for x in leaves(result) if _is_floating(x)]
        observer.op_ran(call[0], operands, outputs)
        if self._gradients:
            result = self._passing(result, partial(observer.gradient_arrived, call[0]))
        return result

    def _passing(self, tree: Any, report: Callable[[int, Operand], None]) -> Any:
        """``tree``; ``report`` gets the place of each of its floating-point arrays and its gradient."""
        places = count()

        def passed(x: Any) -> Any:
            if not _is_floating(x):
                return x
            place = next(places)

            @jax.custom_vjp
            def identity(x: Any) -> Any:
                return x

            def back(_: Any, gradient: Any) -> Any:
                report(place, _operand(gradient))
                return (gradient,)

            identity.defvjp(lambda x: (x, None), back)
            with watch.during(None), under_rules(UNTOUCHED):
                return identity(x)

        return map_leaves(passed, tree)


def _is_floating(x: Any) -> bool:
    return getattr(x, "dtype", None) in _FLOATING


def _has_values(x: Any) -> bool:
    return not isinstance(_values(x), jax.core.Tracer)


def _values(x: Any) -> Any:
    """The array behind what differentiation and vmap trace; of jit's tracers the tracer."""
    while isinstance(x, jax.core.Tracer):
        inner = getattr(x, "primal", getattr(x, "val", None))
        if not isinstance(inner, (jax.Array, np.ndarray, np.generic)):  # tracers are arrays as well
            return x
        x = inner
    return x


def _operand(x: Any) -> Operand:
    x = _values(x)
    return Operand(x, str(x.dtype))


def to_numpy(x: Array) -> np.ndarray:
    """See ``Backend.to_numpy``."""
    values = np.asarray(value_of(x) if isinstance(x, nnx.Variable) else x)
    return values if values.dtype == np.float64 else values.astype(np.float32)
