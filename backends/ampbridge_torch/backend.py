"""The Backend of PyTorch: each method is a line, what it does stands in the module it calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, final

import numpy as np
from torch import Tensor, nn, optim

from ampbridge.adapters.backend import (
    Backend,
    Decoration,
    Device,
    Explanation,
    Kind,
    Layer,
    LossFn,
    Magnitude,
    OptimizerState,
    Probe,
    Product,
    Program,
    Scalar,
    ScaleStore,
)
from ampbridge.adapters.observation import Observer
from ampbridge.checkpoints.weights import Weight
from ampbridge.policies.policy import Policy
from ampbridge.scaling.scale_rule import ScaleState
from ampbridge_torch import (
    arguments,
    casting,
    compiling,
    decorating,
    gradients,
    held_memory,
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
class TorchBackend(Backend):
    """PyTorch, on the CPU and on accelerators that it has an autocast for."""

    name = "torch"
    compiles_by_default = False
    examples = arguments.EXAMPLES

    def kind(self, obj: object) -> Kind | None:
        return arguments.kind(obj)

    def autocast(self, policy: Policy) -> AbstractContextManager[None]:
        return casting.region(policy)

    def execution(self, policy: Policy) -> Literal["native", "simulated"]:
        return casting.execution(policy)

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        return casting.cast(x, dtype)

    def layers(self, model: nn.Module) -> list[Layer]:
        return decorating.layers(model)

    def decorate(
        self, model: nn.Module, optimizer: optim.Optimizer | None, decoration: Decoration
    ) -> None:
        decorating.decorate(model, optimizer, decoration)

    def undecorate(self, model: nn.Module, optimizer: optim.Optimizer | None) -> None:
        decorating.undecorate(model, optimizer)

    def decoration(self, model: nn.Module, optimizer: optim.Optimizer | None) -> Decoration | None:
        return decorating.decoration(model, optimizer)

    def largest_magnitudes(self, model: nn.Module, kept: Sequence[nn.Module]) -> list[Magnitude]:
        return decorating.largest_magnitudes(model, kept)

    def undecorated(
        self, model: nn.Module, optimizer: optim.Optimizer | None
    ) -> AbstractContextManager[None]:
        if decorating.has_masters(model):
            return decorating.masters_in(model)
        return super().undecorated(model, optimizer)

    def copied(
        self, model: nn.Module, optimizer: optim.Optimizer, memo: dict[int, Any]
    ) -> tuple[nn.Module, optim.Optimizer]:
        return decorating.copied(model, optimizer, memo)

    def parameters(self, owner: nn.Module | optim.Optimizer) -> list[Tensor]:
        return gradients.parameters(owner)

    def low_parameters(self, model: nn.Module) -> list[str]:
        return [] if decorating.shares_low_weights(model) else super().low_parameters(model)

    def parameter_names(self, model: nn.Module) -> list[str]:
        return training_state.parameter_names(model)

    def gradients(
        self,
        loss_fn: LossFn,
        model: nn.Module,
        batch: Sequence[Any],
        policy: Policy,
        factor: Scalar,
        total: Sequence[Tensor | None] | None,
        optimizer: optim.Optimizer | None = None,
    ) -> tuple[Tensor, Any, list[Tensor | None]]:
        return gradients.gradients(loss_fn, model, batch, policy, factor, total, optimizer)

    def stored_gradients(self, optimizer: optim.Optimizer) -> list[Tensor | None]:
        return gradients.stored_gradients(optimizer)

    def unscale(
        self, grads: Sequence[Tensor | None], scale: Scalar
    ) -> tuple[list[Tensor | None], Scalar]:
        return scaling.unscale(grads, scale)

    def unscale_for(
        self, optimizer: optim.Optimizer, grads: Sequence[Tensor | None], scale: Scalar
    ) -> tuple[list[Tensor | None], Scalar]:
        return scaling.unscale_for(optimizer, grads, scale)

    def worst(self, found: Sequence[Scalar]) -> Scalar:
        return scaling.worst(found)

    def mean_loss(self, loss: Tensor, model: nn.Module) -> Tensor:
        return ranks.mean_loss(loss, model)

    def add(
        self, total: Sequence[Tensor | None], grads: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        return gradients.add(total, grads)

    def clip(
        self, grads: Sequence[Tensor | None], max_norm: float
    ) -> tuple[list[Tensor | None], Tensor]:
        return scaling.clip(grads, max_norm)

    def apply(
        self,
        optimizer: optim.Optimizer,
        parameters: Sequence[Tensor],
        grads: Sequence[Tensor | None],
        found: Scalar,
    ) -> Scalar:
        return scaling.apply(optimizer, parameters, grads, found)

    def compile(self, build: Callable[[LossFn], Program], loss_fn: LossFn) -> Program:
        return compiling.compile_step(build, loss_fn)

    def scale_store(self, state: ScaleState, like: Any) -> ScaleStore:
        return scaling.scale_store(state, like)

    def devices(self) -> list[Device]:
        return probing.devices()

    def probe(self, device: Device) -> Probe:
        return probing.probe(device)

    def products(self, model: nn.Module) -> list[Product]:
        return probing.products(model)

    def explain(self, policy: Policy) -> Explanation:
        return probing.explain(policy)

    def weights(self, model: nn.Module) -> list[Weight]:
        return training_state.weights(model)

    def read_weights(self, model: nn.Module) -> dict[str, np.ndarray]:
        return training_state.read_weights(model)

    def write_weights(self, model: nn.Module, values: Mapping[str, np.ndarray]) -> None:
        training_state.write_weights(model, values)

    def read_optimizer(self, optimizer: optim.Optimizer, model: nn.Module) -> OptimizerState:
        return training_state.read_optimizer(optimizer, model)

    def write_optimizer(
        self, optimizer: optim.Optimizer, model: nn.Module, state: OptimizerState
    ) -> None:
        training_state.write_optimizer(optimizer, model, state)

    def on_one_rank(self, model: nn.Module, action: Callable[[], None]) -> None:
        ranks.on_one_rank(model, action)

    def native_scaler(self, state: Mapping[str, Any], optimizer: optim.Optimizer | None) -> Any:
        return native_scaler.native_scaler(state, optimizer)

    def native_scaler_state(self, scaler: Any) -> Mapping[str, Any]:
        return native_scaler.native_scaler_state(scaler)

    def native_policy(self, policy: Policy) -> Any:
        return native_policy.native_policy(policy)

    def policy_of_native(self, native: Any) -> Policy:
        return native_policy.policy_of_native(native)

    def observe(
        self, model: nn.Module, observer: Observer, *, gradients: bool
    ) -> AbstractContextManager[None]:
        return observing.observe(model, observer, gradients=gradients)

    def restored(self, model: nn.Module) -> AbstractContextManager[None]:
        return restoring.restored(model)

    def to_numpy(self, x: Tensor) -> np.ndarray:
        return observing.to_numpy(x)

    def peak_memory(self, action: Callable[[], None]) -> int | None:
        return held_memory.peak_memory(action)
