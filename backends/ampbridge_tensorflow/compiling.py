"""The whole step as a tf.function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ampbridge.backend import Array, LossFn, Program, StepOutput
from ampbridge.policy import Policy
from ampbridge_tensorflow import _private
from ampbridge_tensorflow.fitted import traces_keyed_otherwise
from ampbridge_tensorflow.gradients import native_batch


def compile_step(build: Callable[[LossFn], Program], loss_fn: LossFn) -> Program:
    """``build(loss_fn)``, traced once for each policy and each kind of step.

    Python control flow on tensors in ``loss_fn`` is converted by AutoGraph, as in any tf.function.
    The policy says how the step's own model is decorated; that other models are decorated meanwhile
    makes no new trace. One that ``loss_fn`` calls runs as it was decorated at the first step.
    """
    step = build(_with_autograph(loss_fn))
    traced: dict[tuple[Policy, bool, bool, int], Any] = {}

    def trace(policy: Policy, final: bool, first: bool, size: int) -> Any:
        # One flat list of arguments: tf.function takes 0.1 ms longer to look at nested ones.
        def run(*arguments: Any) -> StepOutput:
            total = None if first else arguments[size:]
            return step(policy, final, total, arguments[:size])

        # Our own code holds nothing to convert; reduce_retracing for a last, smaller batch.
        return tf.function(run, autograph=False, reduce_retracing=True)

    def program(
        policy: Policy, final: bool, total: Sequence[Array] | None, batch: Sequence[Any]
    ) -> StepOutput:
        kind = (policy, final, total is None, len(batch))
        if kind not in traced:
            traced[kind] = trace(*kind)
        with traces_keyed_otherwise():
            output: StepOutput = traced[kind](*native_batch(batch), *(total or ()))
        return output

    return program


def _with_autograph(loss_fn: LossFn) -> LossFn:
    convert = _private.value(_private.TO_AUTOGRAPH)
    status = _private.value(_private.AUTOGRAPH_STATUS)
    if convert is None or status is None:
        return loss_fn
    converted: LossFn = convert(loss_fn, status())
    return converted
