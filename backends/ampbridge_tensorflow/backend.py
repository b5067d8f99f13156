"""The adapter: where each method of the protocol is done."""

from __future__ import annotations

from typing import Any, final

from ampbridge.adapters import kept_calls
from ampbridge.adapters.backend import Backend, Model, Program, ScaleStore
from ampbridge.policies.policy import MASTERS, SLOTS
from ampbridge.scaling.scale_rule import ScaleState
from ampbridge_tensorflow import _private, arguments, probing, training_state
from ampbridge_tensorflow.autocast import casting, execution, float32
from ampbridge_tensorflow.fit.loss_scale_optimizer import LossScaleOptimizer
from ampbridge_tensorflow.lens import held_memory, observing, restoring
from ampbridge_tensorflow.model import decorating
from ampbridge_tensorflow.native import native_policy, native_scaler
from ampbridge_tensorflow.step import compiling, gradients, own_precision, ranks, scaling


@final
class TensorflowBackend(Backend):
    """Casts where ops enter TensorFlow, ``tf.GradientTape``, Keras optimizers, ``tf.function``."""

    name = "tensorflow"
    compiles_by_default = True
    examples = arguments.EXAMPLES
    masters = MASTERS
    slots = SLOTS
    float32_switch = "tf.config.experimental.enable_tensor_float_32_execution, for the process"

    # A method that is called like its module hides it, and so stands below what else the module does.
    kind = staticmethod(arguments.kind)
    autocast = staticmethod(casting.region)
    execution = staticmethod(execution.of)
    float32 = staticmethod(float32.setting.during)

    noticing_own_precision = staticmethod(own_precision.noticed)
    noting_kept_calls = staticmethod(kept_calls.noting)

    layers = staticmethod(decorating.layers)
    decorate = staticmethod(decorating.decorate)
    serve = staticmethod(decorating.serve)
    served = staticmethod(decorating.served)
    undecorate = staticmethod(decorating.undecorate)
    decoration = staticmethod(decorating.decoration)
    largest_magnitudes = staticmethod(decorating.largest_magnitudes)
    copied = staticmethod(decorating.copied)

    cast = staticmethod(gradients.cast)
    parameters = staticmethod(gradients.parameters)
    records = staticmethod(_private.trackers)
    add = staticmethod(gradients.add)
    gradients = staticmethod(gradients.gradients)

    unscale = staticmethod(scaling.unscale)
    worst = staticmethod(scaling.worst)
    clip = staticmethod(scaling.clip)
    clip_values = staticmethod(scaling.clip_values)
    step = staticmethod(scaling.step)
    step_unless = staticmethod(scaling.step_unless)
    replica = staticmethod(ranks.replica)
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

    def on_replicas(self, program: Program, model: Model) -> Program:
        return gradients.StepOfModel(ranks.on_replicas(program, model), model)

    def scale_store(self, state: ScaleState, like: Any) -> ScaleStore:
        if isinstance(like, LossScaleOptimizer):
            return like.scale_store(state)
        return scaling.variable_store(state, ranks.strategy_of(like))
