"""The adapter: where each method of the protocol is done."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import final

from torch import Tensor, nn, optim

from ampbridge.adapters.backend import Backend, Scalar
from ampbridge.policies.policy import MASTERS, SLOTS
from ampbridge_torch import _private, arguments, probing, training_state
from ampbridge_torch.autocast import casting, execution, float32
from ampbridge_torch.lens import held_memory, observing, restoring
from ampbridge_torch.model import decorating, master_weights, model_calls
from ampbridge_torch.native import native_policy, native_scaler
from ampbridge_torch.step import compiling, gradients, own_precision, ranks, scaling


@final
class TorchBackend(Backend):
    """PyTorch, on the CPU and on accelerators that it has an autocast for."""

    name = "torch"
    compiles_by_default = False
    examples = arguments.EXAMPLES
    float32_switch = "torch.backends, for the process"
    masters = MASTERS
    slots = SLOTS
    updates_in_16_bits = True

    # A method that is called like its module hides it, and so stands below what else the module does.
    kind = staticmethod(arguments.kind)
    autocast = staticmethod(casting.region)
    execution = staticmethod(execution.of)
    cast = staticmethod(casting.cast)
    float32 = staticmethod(float32.setting.during)

    noticing_own_precision = staticmethod(own_precision.noticed)
    noting_kept_calls = staticmethod(model_calls.noting_kept_calls)

    layers = staticmethod(decorating.layers)
    decorate = staticmethod(decorating.decorate)
    serve = staticmethod(decorating.serve)
    served = staticmethod(decorating.served)
    undecorate = staticmethod(decorating.undecorate)
    decoration = staticmethod(decorating.decoration)
    largest_magnitudes = staticmethod(decorating.largest_magnitudes)
    copied = staticmethod(decorating.copied)

    parameters = staticmethod(gradients.parameters)
    stored_gradients = staticmethod(gradients.stored_gradients)
    add = staticmethod(gradients.add)
    bind = staticmethod(gradients.Bound)
    gradients = staticmethod(gradients.gradients)

    unscale = staticmethod(scaling.unscale)
    unscale_for = staticmethod(scaling.unscale_for)
    worst = staticmethod(scaling.worst)
    clip = staticmethod(scaling.clip)
    clip_values = staticmethod(scaling.clip_values)
    step = staticmethod(scaling.step)
    scale_store = staticmethod(scaling.scale_store)
    mean_loss = staticmethod(ranks.mean_loss)
    on_one_rank = staticmethod(ranks.on_one_rank)
    compile = staticmethod(compiling.compile_step)

    parameter_names = staticmethod(training_state.parameter_names)
    weights = staticmethod(training_state.weights)
    read_weights = staticmethod(training_state.read_weights)
    write_weights = staticmethod(training_state.write_weights)
    read_optimizer = staticmethod(training_state.read_optimizer)
    write_optimizer = staticmethod(training_state.write_optimizer)

    devices = staticmethod(probing.devices)
    probe = staticmethod(probing.probe)
    products = staticmethod(probing.products)
    explain = staticmethod(probing.explain)

    observe = staticmethod(observing.observe)
    to_numpy = staticmethod(observing.to_numpy)
    restored = staticmethod(restoring.restored)
    peak_memory = staticmethod(held_memory.peak_memory)

    native_scaler_state = staticmethod(native_scaler.native_scaler_state)
    native_scaler = staticmethod(native_scaler.native_scaler)

    policy_of_native = staticmethod(native_policy.policy_of_native)
    native_policy = staticmethod(native_policy.native_policy)

    def undecorated(
        self, model: nn.Module, optimizer: optim.Optimizer | None
    ) -> AbstractContextManager[None]:
        if decorating.has_masters(model):
            return decorating.masters_in(model)
        return super().undecorated(model, optimizer)

    def step_unless(
        self,
        optimizer: optim.Optimizer,
        parameters: Sequence[Tensor],
        grads: Sequence[Tensor | None],
        overflow: Scalar,
    ) -> Scalar:
        if _private.decides_by_itself(optimizer):
            return scaling.step_unless(optimizer, parameters, grads, overflow)
        return super().step_unless(optimizer, parameters, grads, overflow)

    def low_parameters(
        self, parameters: Sequence[Tensor], optimizer: optim.Optimizer | None = None
    ) -> list[Tensor]:
        return master_weights.of_no_model_at_o2(super().low_parameters(parameters, optimizer))
