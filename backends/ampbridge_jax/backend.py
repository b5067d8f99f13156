"""The adapter: where each method of the protocol is done."""

from __future__ import annotations

from typing import final

from ampbridge.adapters import kept_calls
from ampbridge.adapters.backend import Backend
from ampbridge.policies.policy import MASTERS, SLOTS
from ampbridge_jax import arguments, optimizers, probing, training_state
from ampbridge_jax.autocast import casting, rules
from ampbridge_jax.lens import observing, restoring
from ampbridge_jax.model import decorating, model_calls
from ampbridge_jax.step import compiling, gradients, scaling


@final
class JaxBackend(Backend):
    """Modules of flax nnx, trained with optax, and Keras' models; gradients are values."""

    name = "jax"
    compiles_by_default = True
    examples = property(arguments.examples)
    float32_switch = "jax.default_matmul_precision"
    masters = MASTERS
    slots = SLOTS

    # A method that is called like its module hides it, and so stands below what else the module does.
    kind = staticmethod(arguments.kind)
    acquaint = staticmethod(optimizers.acquaint)
    autocast = staticmethod(casting.region)
    float32 = staticmethod(casting.float32)
    cast = staticmethod(rules.cast)

    noticing_own_precision = staticmethod(model_calls.noticing_own_precision)
    noting_kept_calls = staticmethod(kept_calls.noting)

    layers = staticmethod(model_calls.layers)
    decorate = staticmethod(decorating.decorate)
    serve = staticmethod(decorating.serve)
    served = staticmethod(decorating.served)
    undecorate = staticmethod(decorating.undecorate)
    decoration = staticmethod(decorating.decoration)
    largest_magnitudes = staticmethod(decorating.largest_magnitudes)
    copied = staticmethod(optimizers.copied)

    parameters = staticmethod(optimizers.parameters)
    low_parameters = staticmethod(decorating.low_by_the_user)
    bind = staticmethod(gradients.bind)
    gradients = staticmethod(gradients.gradients)

    unscale = staticmethod(scaling.unscale)
    unscale_for = staticmethod(scaling.unscale_for)
    worst = staticmethod(scaling.worst)
    clip = staticmethod(scaling.clip)
    clip_values = staticmethod(scaling.clip_values)
    step = staticmethod(scaling.step)
    step_unless = staticmethod(scaling.step_unless)
    scale_store = staticmethod(scaling.scale_store)

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
