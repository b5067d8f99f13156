"""The adapter: where each method of the protocol is done."""

from __future__ import annotations

from typing import final

from ampbridge.adapters import kept_calls
from ampbridge.adapters.backend import Backend
from ampbridge.policies.policy import MASTERS, SLOTS
from ampbridge_numpy import arguments, probing, training_state
from ampbridge_numpy.autocast import casting, execution
from ampbridge_numpy.lens import observing, restoring
from ampbridge_numpy.model import decorating
from ampbridge_numpy.step import gradients, scaling


@final
class NumpyBackend(Backend):
    """NumPy with the gradients of HIPS ``autograd``; all scalars are Python numbers."""

    name = "numpy"
    compiles_by_default = False
    examples = arguments.EXAMPLES
    masters = MASTERS
    slots = SLOTS

    # A method that is called like its module hides it, and so stands below what else the module does.
    kind = staticmethod(arguments.kind)
    autocast = staticmethod(casting.region)
    execution = staticmethod(execution.of)
    cast = staticmethod(casting.cast)

    noting_kept_calls = staticmethod(kept_calls.noting)

    layers = staticmethod(decorating.layers)
    decorate = staticmethod(decorating.decorate)
    serve = staticmethod(decorating.serve)
    served = staticmethod(decorating.served)
    undecorate = staticmethod(decorating.undecorate)
    decoration = staticmethod(decorating.decoration)
    largest_magnitudes = staticmethod(decorating.largest_magnitudes)

    parameters = staticmethod(gradients.parameters)
    gradients = staticmethod(gradients.gradients)

    unscale = staticmethod(scaling.unscale)
    clip = staticmethod(scaling.clip)
    clip_values = staticmethod(scaling.clip_values)
    step = staticmethod(scaling.step)

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
