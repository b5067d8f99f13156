"""Random histories of TensorFlow's training steps against the pure rule, eager and compiled."""

from functools import cache
from typing import Any

import pytest

from ampbridge_testing import import_or_skip

import_or_skip("tensorflow")
import histories  # noqa: E402
import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from hypothesis import given, settings  # noqa: E402

import ampbridge as amp  # noqa: E402


class Scalar(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable(0.0)

    def __call__(self, factor: Any) -> Any:
        return self.weight * factor


def made(model: Scalar, **arguments: Any) -> amp.TrainStep:
    optimizer = keras.optimizers.SGD(1.0)
    return amp.train_step(
        lambda model, factor: model(factor), model, optimizer, policy="O0", **arguments
    )


@settings(max_examples=max(125, settings.default.max_examples))
@given(first=histories.settings, way=histories.ways, history=histories.histories)
def test_eager_steps_follow_the_pure_rule(first: Any, way: Any, history: Any) -> None:
    model = Scalar()

    def make(**arguments: Any) -> amp.TrainStep:
        return made(model, compile=False, **arguments)

    histories.check(make, lambda: float(model.weight), first, way, history)


FIXED = {"growth_interval": 2, "backoff_interval": 2, "min_scale": 1.0, "max_scale": 2.0**6}


@cache
def compiled(accumulate: int, on_overflow: str) -> amp.TrainStep:
    """Traced once for all histories, which start from a state that is loaded."""
    scaler = amp.GradScaler(histories.FIRST_SCALE, **FIXED, **histories.QUIET)
    way = {"accumulate": accumulate, "on_overflow": on_overflow}
    return made(Scalar(), compile=True, scaler=scaler, **way)


@cache
def first_state(accumulate: int, on_overflow: str) -> Any:
    return compiled(accumulate, on_overflow).state_dict()


@pytest.mark.slow
@settings(max_examples=max(375, settings.default.max_examples * 3))
@given(way=histories.ways, history=histories.histories_of_fixed_settings)
def test_compiled_steps_follow_the_pure_rule(way: Any, history: Any) -> None:
    step = compiled(**way)
    step.model.weight.assign(0.0)
    state = first_state(**way)

    def make(**_: Any) -> amp.TrainStep:
        step.load_state_dict(state)
        return step

    histories.check(make, lambda: float(step.model.weight), FIXED, way, history)
