"""Ctrl-C at any bytecode of a region, and regions of asyncio's tasks."""

from unittest import mock

import pytest
from interrupts import dtypes_of_tasks, left_by_interrupts

import ampbridge as amp
from ampbridge_testing import import_or_skip

import_or_skip("tensorflow")
import tensorflow as tf  # noqa: E402

from ampbridge_tensorflow.testing import TensorFlowHarness  # noqa: E402

pytestmark = pytest.mark.slow


def test_an_interrupt_at_any_bytecode_leaves_no_region():
    points, wrong = left_by_interrupts(TensorFlowHarness(), every=53)
    assert points > 20
    assert wrong == {}


def test_each_task_is_in_its_own_region():
    assert dtypes_of_tasks(TensorFlowHarness()) == [
        ["float16"] * 3 + ["float32"],
        ["bfloat16"] * 3 + ["float32"],
    ]


@pytest.mark.parametrize("method", ["__enter__", "__exit__"])
def test_ctrl_c_leaves_no_tape_recording(method):
    """Neither as TensorFlow's own method ends, nor as it begins."""
    original, came = getattr(tf.GradientTape, method), []

    def interrupted(tape, *arguments):
        if method == "__enter__":
            original(tape)
        came.append(method)
        if len(came) == 1:
            raise KeyboardInterrupt
        return original(tape, *arguments)

    harness = TensorFlowHarness()
    before, model = harness.ambient(), tf.Module()
    model.w = tf.Variable(2.0)
    with mock.patch.object(tf.GradientTape, method, interrupted), pytest.raises(KeyboardInterrupt):
        amp.value_and_grad(lambda model: model.w * 3.0, model, policy="O1:bfloat16")
    assert came
    assert harness.ambient() == before
