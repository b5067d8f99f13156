"""What the core asks of PaddlePaddle; the work is done in the modules beside this one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, final

import numpy as np

from ampbridge.adapters.backend import (
    Array,
    Backend,
    Decoration,
    Device,
    Explanation,
    Kind,
    Layer,
    LossFn,
    Magnitude,
    Model,
    Optimizer,
    OptimizerState,
    Probe,
    Product,
    Program,
    Scalar,
)
from ampbridge.adapters.observation import Observer
from ampbridge.checkpoints.weights import Weight
from ampbridge.policies.policy import Policy
from ampbridge.scaling.scale_rule import HostStore, ScaleState
from ampbridge_paddle import (
    arguments,
    casting,
    compiling,
    decorating,
    gradients,
    hybrid_groups,
    native_policy,
    native_scaler,
    observing,
    probing,
    ranks,
    restoring,
    scaling,
    training_state,
)


@final
class PaddleBackend(Backend):
    """PaddlePaddle: native casts where there are 16-bit kernels, simulated ones on CPU."""

    name = "paddle"
    compiles_by_default = False
    examples = arguments.EXAMPLES

    def kind(self, obj: object) -> Kind | None:
        return arguments.kind(obj)

    def autocast(self, policy: Policy) -> AbstractContextManager[None]:
        return casting.region(policy)

    def execution(self, policy: Policy) -> Literal["native", "simulated"]:
        return casting.execution(policy)

    def cast(self, x: Array, dtype: str) -> Array:
        return casting.cast(x, dtype)

    def layers(self, model: Model) -> list[Layer]:
        return decorating.layers(model)

    def decorate(self, model: Model, optimizer: Optimizer | None, decoration: Decoration) -> None:
        decorating.decorate(model, optimizer, decoration)

    def undecorate(self, model: Model, optimizer: Optimizer | None) -> None:
        decorating.undecorate(model, optimizer)

    def decoration(self, model: Model, optimizer: Optimizer | None) -> Decoration | None:
        return decorating.decoration(model, optimizer)

    def largest_magnitudes(self, model: Model, kept: Sequence[Model]) -> list[Magnitude]:
        return decorating.largest_magnitudes(model, kept)

    def parameters(self, owner: Model | Optimizer) -> list[Array]:
        return gradients.parameters(owner)

    def low_parameters(self, model: Model) -> list[str]:
        return [] if decorating.shares_low_weights(model) else super().low_parameters(model)

    def parameter_names(self, model: Model) -> list[str]:
        return training_state.parameter_names(model)

    def gradients(
        self,
        loss_fn: LossFn,
        model: Model,
        batch: Sequence[Any],
        policy: Policy,
        factor: Scalar,
        total: Sequence[Array] | None,
        optimizer: Optimizer | None = None,
    ) -> tuple[Array, Any, list[Array]]:
        region = casting.region(policy)
        return gradients.gradients(loss_fn, model, batch, region, factor, total, optimizer)

    def stored_gradients(self, optimizer: Optimizer) -> list[Array]:
        return gradients.stored_gradients(optimizer)

    def unscale(self, grads: Sequence[Array], scale: Scalar) -> tuple[list[Array], Scalar]:
        return scaling.unscale(grads, scale)

    def agree(self, found: Scalar, optimizer: Optimizer | None) -> Scalar:
        return hybrid_groups.agree(found, optimizer)

    def mean_loss(self, loss: Array, model: Model) -> Array:
        return ranks.mean_loss(loss, model)

    def add(self, total: Sequence[Array], grads: Sequence[Array]) -> list[Array]:
        return gradients.add(total, grads)

    def clip(self, grads: Sequence[Array], max_norm: float) -> tuple[list[Array], Scalar]:
        return scaling.clip(grads, max_norm)

    def apply(
        self,
        optimizer: Optimizer,
        parameters: Sequence[Array],
        grads: Sequence[Array],
        found: Scalar,
    ) -> Scalar:
        return scaling.apply(optimizer, parameters, grads, found)

    def compile(self, build: Callable[[LossFn], Program], loss_fn: LossFn) -> Program:
        return compiling.compiled(build, loss_fn)

    def scale_store(self, state: ScaleState, like: Any) -> HostStore:
        return scaling.scale_store(state, like)

    def devices(self) -> list[Device]:
        return probing.devices()

    def probe(self, device: Device) -> Probe:
        return probing.probe(device)

    def products(self, model: Model) -> list[Product]:
        return probing.products(model)

    def explain(self, policy: Policy) -> Explanation:
        return probing.explain(policy)

    def weights(self, model: Model) -> list[Weight]:
        return training_state.weights(model)

    def read_weights(self, model: Model) -> dict[str, np.ndarray]:
        return training_state.read_weights(model)

    def write_weights(self, model: Model, values: Mapping[str, np.ndarray]) -> None:
        training_state.write_weights(model, values)

    def read_optimizer(self, optimizer: Optimizer, model: Model) -> OptimizerState:
        return training_state.read_optimizer(optimizer, model)

    def write_optimizer(self, optimizer: Optimizer, model: Model, state: OptimizerState) -> None:
        training_state.write_optimizer(optimizer, model, state)

    def on_one_rank(self, model: Model, action: Callable[[], None]) -> None:
        ranks.on_one_rank(model, action)

    def native_scaler(self, state: Mapping[str, Any], optimizer: Optimizer | None) -> Any:
        return native_scaler.native_scaler(state, optimizer)

    def native_scaler_state(self, scaler: Any) -> Mapping[str, Any]:
        return native_scaler.native_scaler_state(scaler)

    def observe(
        self, model: Model, observer: Observer, *, gradients: bool
    ) -> AbstractContextManager[None]:
        return observing.observe(model, observer, gradients=gradients)

    def restored(self, model: Model) -> AbstractContextManager[None]:
        return restoring.restored(model)

    def to_numpy(self, x: Array) -> np.ndarray:
        return observing.to_numpy(x)

    def peak_memory(self, action: Callable[[], None]) -> int | None:
        return observing.peak_memory(action)

    def native_policy(self, policy: Policy) -> Any:
        return native_policy.native_policy(policy)

    def policy_of_native(self, native: Any) -> Policy:
        return native_policy.policy_of_native(native)
