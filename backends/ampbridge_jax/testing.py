"""The conformance suite's view of JAX: flax nnx and optax. Never uses the backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from ampbridge import Backend
from ampbridge.adapters.backend import Array
from ampbridge_jax.backend import JaxBackend
from ampbridge_jax.optimizers import Optimizer
from ampbridge_testing import Harness, attributes_of, contents
from ampbridge_testing.harness import LayeredModel

_set: Any = jax.config.update
_set("jax_enable_x64", True)  # the suite has arrays of float64 and int64


class Perceptron(nnx.Module):
    """The suite's model, its parameters in the module itself."""

    def __init__(self, weights: Sequence[np.ndarray]) -> None:
        self.w1, self.b1, self.w2, self.b2 = (nnx.Param(jnp.array(w)) for w in weights)

    def hidden(self, x: Any) -> Any:
        return jax.nn.relu(x @ self.w1[...] + self.b1[...])

    def __call__(self, x: Any) -> Any:
        return self.hidden(x) @ self.w2[...] + self.b2[...]


class Layered(LayeredModel, nnx.Module):
    """The suite's model, of layers."""

    __call__ = LayeredModel.forward

    def linear(self, inputs: int, outputs: int) -> nnx.Linear:
        return nnx.Linear(inputs, outputs, rngs=nnx.Rngs(0))

    def layer_norm(self, width: int) -> nnx.LayerNorm:
        return nnx.LayerNorm(width, epsilon=1e-5, rngs=nnx.Rngs(0))

    def relu(self, x: Any) -> Any:
        return jax.nn.relu(x)

    def fill(self, values: Sequence[np.ndarray]) -> None:
        for parameter, value in zip(_parameters(self), values, strict=True):
            parameter[...] = jnp.array(value, jnp.float32)


def _parameters(model: Any) -> list[Any]:
    if isinstance(model, Perceptron):
        return [model.w1, model.b1, model.w2, model.b2]
    if isinstance(model, nnx.Linear):
        return [model.kernel, model.bias]
    norm = [] if model.norm is None else [model.norm.scale, model.norm.bias]
    return [model.hidden.kernel, model.hidden.bias, *norm, model.head.kernel, model.head.bias]


class JaxHarness(Harness):
    """Modules of nnx, and optimizers of optax that know their models."""

    frameworks = ("jax", "flax", "optax")
    compiles = True
    copies = True
    stores_gradients = False
    simulated = False
    has_kernels = True
    simulates = False
    leaves_dead_references = True  # the key of each trace, in the cache of jitted functions
    linear_kind = "Linear"
    model = Perceptron
    layered = Layered

    def __init__(self, tested: Backend | None = None) -> None:
        self.backend = tested or JaxBackend()

    def array(self, values: Any, dtype: str = "float32") -> Array:
        return jnp.asarray(np.array(values), dtype)

    def numpy(self, x: Array) -> np.ndarray:
        return np.array(x[...] if isinstance(x, nnx.Variable) else x)

    def run(self, op: str, *inputs: Array) -> Array:
        return getattr(jnp, {"atan2": "arctan2"}.get(op, op))(*inputs)

    def details(self, model: Any, optimizer: Any) -> Mapping[str, object]:
        found = contents("optimizer", optimizer)
        for path, module in nnx.iter_modules(model):
            found |= contents(str(path), module) | {f"{path} class": type(module)}
        # nnx.grad renews the state of a module itself.
        found = {key: value for key, value in found.items() if "_pytree__state" not in key}
        return found | {f"dtype {i}": str(p.dtype) for i, p in enumerate(_parameters(model))}

    def mean_squared_error(self, prediction: Array, target: Array) -> Array:
        return jnp.mean(jnp.square(prediction - target))

    def parameters(self, model: Any) -> list[Any]:
        return _parameters(model)

    def optimizer(self, model: Any, kind: str, rate: float, *others: Any) -> Optimizer:
        make = optax.adam if kind == "adam" else optax.sgd
        momentum = {"momentum": 0.9} if kind == "momentum" else {}
        # Rates are a part of the optimizer's state: a checkpoint has them, as it has torch's.
        tx = optax.inject_hyperparams(make)(learning_rate=rate, **momentum)
        return Optimizer((model, *others) if others else model, tx)

    def freeze(self, model: Any, optimizer: Any) -> None:
        optimizer.wrt = nnx.Nothing()
        optimizer.opt_state = nnx.data(optimizer.tx.init({}))

    def slots(self, optimizer: Any) -> list[np.ndarray]:
        return [np.array(x) for x in jax.tree.leaves(nnx.state(optimizer))]

    def native_gradients(
        self, model: Any, loss_fn: Any, batch: Sequence[Array], scale: Any
    ) -> list[Array]:
        def loss(model: Any) -> Array:
            return scale(loss_fn(model, *batch))

        flat = dict(nnx.to_flat_state(nnx.grad(loss)(model)))
        paths = {id(v): path for path, v in nnx.iter_graph(model) if isinstance(v, nnx.Param)}
        return [flat[paths[id(p)]][...] for p in _parameters(model)]

    def on_backward(self, x: Array, call: Callable[[], None]) -> Array:
        @jax.custom_vjp
        def watched(x: Array) -> Array:
            return x

        def backward(_: None, gradient: Array) -> tuple[Array]:
            call()
            return (gradient,)

        watched.defvjp(lambda x: (x, None), backward)
        return watched(x)

    def is_differentiable(self, x: Array) -> bool:
        return isinstance(x, jax.core.Tracer)

    def is_tracing(self) -> bool:
        # A step's own trace counts, differentiation alone does not.
        return isinstance(jnp.zeros(()) + 0, jax.core.Tracer)

    def ambient(self) -> Mapping[str, object]:
        layers = (nnx.Linear, nnx.LinearGeneral, nnx.Conv, nnx.ConvTranspose, nnx.Einsum)
        return attributes_of(jnp, jax.lax, jax.nn, nnx, optax, *layers)
