"""The whole step as a tf.function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from ampbridge.adapters.backend import Array, LossFn, Program, StepOutput
from ampbridge.adapters.interrupts import hold_interrupts
from ampbridge.adapters.nested import Structure, leaves, map_leaves
from ampbridge.policies.policy import Policy
from ampbridge_tensorflow import _private
from ampbridge_tensorflow.autocast.casting import explained
from ampbridge_tensorflow.model.fitted import traces_keyed_otherwise
from ampbridge_tensorflow.step.direct_calls import DirectCalls
from ampbridge_tensorflow.step.gradients import StepOfModel, native_array, unbuilt_if_it_fails


def compile_step(build: Callable[[LossFn], Program], loss_fn: LossFn) -> Program:
    """``build(loss_fn)``, traced once for each policy, each kind of step and each choice of trained layers.

    Python control flow on tensors in ``loss_fn`` is converted by AutoGraph, as in any tf.function.
    The policy says how the step's own model is decorated; that other models are decorated meanwhile
    makes no new trace. One that ``loss_fn`` calls runs as it was decorated at the first step.
    """
    step = build(_private.with_autograph(loss_fn))
    traced: dict[tuple[Policy, bool, bool, Structure, tuple[bool, ...]], Any] = {}
    direct = DirectCalls()

    def trace(policy: Policy, final: bool, first: bool, structure: Structure) -> Any:
        # One flat list of arguments: tf.function knows fewer containers, and takes 0.1 ms to look
        # at those that it knows.
        def run(*arguments: Any) -> StepOutput:
            inputs, total = arguments[: structure.size], arguments[structure.size :]
            return step(policy, final, None if first else total, structure.filled(inputs))

        # Our own code holds nothing to convert; reduce_retracing for a last, smaller batch. TensorFlow
        # counts traces by the code of a function, which all steps have in common, and of a partial by
        # itself: else it would warn of five steps' first traces as of one function's.
        return tf.function(partial(run), autograph=False, reduce_retracing=True)

    def forget() -> None:
        traced.clear()
        direct.clear()

    def program(
        policy: Policy, final: bool, total: Sequence[Array] | None, batch: Sequence[Any]
    ) -> StepOutput:
        trained: tuple[bool, ...] = ()
        if isinstance(step, StepOfModel):
            step.check_layers()
            trained = step.trained()
        native = map_leaves(native_array, batch)
        tensors: list[Any] = []
        key = direct.key((policy, final, trained), (native, total), tensors)
        call = direct.find(key)
        output: StepOutput
        if call is not None:
            hold_interrupts()  # a graph is run whole, and what comes meanwhile is noticed behind it
            with explained(policy):
                output = call(tensors)
            return output
        kind = (policy, final, total is None, Structure(native), trained)
        if kind in traced:
            hold_interrupts()
        else:
            traced[kind] = trace(*kind[:4])
        with unbuilt_if_it_fails(forget), traces_keyed_otherwise(), explained(policy):
            arguments = *leaves(native), *(total or ())
            output = traced[kind](*arguments)
            direct.note(key, traced[kind], arguments)
        return output

    return program
