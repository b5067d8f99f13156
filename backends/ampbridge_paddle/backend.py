"""The adapter: where each method of the protocol is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from ampbridge.adapters import kept_calls
from ampbridge.adapters.backend import Array, Backend, Optimizer
from ampbridge.policies.policy import MASTERS, SLOTS
from ampbridge_paddle import arguments, probing, training_state
from ampbridge_paddle.autocast import casting, execution, float32
from ampbridge_paddle.lens import observing, restoring
from ampbridge_paddle.model import decorating, native_o2
from ampbridge_paddle.native import native_policy, native_scaler
from ampbridge_paddle.step import compiling, gradients, own_precision, ranks, scaling


@final
class PaddleBackend(Backend):
    """PaddlePaddle: native casts where there are 16-bit kernels, simulated ones on CPU."""

    name = "paddle"
    compiles_by_default = False
    examples = arguments.EXAMPLES
    masters = MASTERS
    slots = SLOTS
    float32_switch = "the switches of cuBLAS and cuDNN, for the process"

    # A method that is called like its module hides it, and so stands below what else the module does.
    kind = staticmethod(arguments.kind)
    moves_rates_of = staticmethod(arguments.moves_rates_of)
    autocast = staticmethod(casting.region)
    execution = staticmethod(execution.of)
    float32 = staticmethod(float32.setting.during)
    cast = staticmethod(casting.cast)

    noticing_own_precision = staticmethod(own_precision.noticed)
    noting_kept_calls = staticmethod(kept_calls.noting)

    layers = staticmethod(decorating.layers)
    decorate = staticmethod(decorating.decorate)
    serve = staticmethod(decorating.serve)
    served = staticmethod(decorating.served)
    undecorate = staticmethod(decorating.undecorate)
    decoration = staticmethod(decorating.decoration)
    largest_magnitudes = staticmethod(decorating.largest_magnitudes)

    parameters = staticmethod(gradients.parameters)
    stored_gradients = staticmethod(gradients.stored_gradients)
    add = staticmethod(gradients.add)
    gradients = staticmethod(gradients.gradients)

    unscale = staticmethod(scaling.unscale)
    unscale_for = staticmethod(scaling.unscale_for)
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
    peak_memory = staticmethod(observing.peak_memory)
    restored = staticmethod(restoring.restored)

    native_scaler_state = staticmethod(native_scaler.native_scaler_state)
    native_scaler = staticmethod(native_scaler.native_scaler)

    policy_of_native = staticmethod(native_policy.policy_of_native)
    native_policy = staticmethod(native_policy.native_policy)

    def low_parameters(
        self, parameters: Sequence[Array], optimizer: Optimizer | None = None
    ) -> list[Array]:
        if optimizer is not None and native_o2.has_masters_of_its_own(optimizer):
            return []
        return [p for p in super().low_parameters(parameters) if not native_o2.is_low(p)]
