"""Settings of the TensorFlow test process, made before TensorFlow is imported."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # its start-up notes are no test output

sys.path.insert(0, str(Path(__file__).parent))  # for recorder; pytest adds no paths


LONG = re.compile(
    r"_is_ignored\[.*-O[02]\]|keeps_nothing\[(O0|O2:bfloat16|dropping micro-batches)\]"
    r"|test_gradients_beside_float64\[.*-XLA\]|test_o0_is_plain_keras_bit_for_bit\[(GAN|siamese)\]"
    r"|an_interrupted_step_has_not_happened\[.*(-O0-4|-O1:float16-1|-O2:bfloat16-1)\]"
    r"|test_fit_sounds_alarms_at_its_end\[.*-XLA\]|test_the_census_is_the_recorder_s\[digits-conv"
    r"|test_peak_memory_is_told_by_an_allocator_that_counts\[environment[01]"
    r"|test_a_saved_model_goes_on_as_one_that_was_not\[its own rule\]"
    r"|test_a_worker_that_dies_or_stands_still"  # waits for time limits
)
"""What compiles or traces many programs; of the shared suite, what is quick on the other backends."""

SLOW = re.compile(
    r"an_interrupted_step_has_not_happened|ctrl_c_leaves|leaves?_nothing|keeps_nothing"
    r"|four_threads_each_train|a_forged_slot|no_argument_of_a_scaler_is_ignored|no_field_of_a_recipe_is_ignored"
    r"|peak_memory_is_told|ranges_are_numpy_s|every_bit_is_the_same\[|-XLA\]"
    r"|a_load_into_another_choice.*\[(?!stochastic-float32)"
    r"|(a_resumed_run_(has|with_low_slots_has)_the_same_bits|numpy_adopts|how_many_weights_move)"
    r".*\[(None|float32|kahan)|few_weights_move|moments_rounded_by_chance|slots_are_loaded_into"
)
"""What takes seconds here, mostly of the shared suite: a TensorFlow op takes 0.1 ms of Python when it
is called eagerly, and a traced program up to half a second."""


BY_NIGHT = re.compile(
    r"kahan_is_|rounding_by_chance_moves|another_choice.*kahan|(same_bits|adopts.*|weights_move|the_values)\[kahan\]"
)
"""Thousands of eager updates, one by one; and "kahan" beside "float32", which are one program here."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if BY_NIGHT.search(item.name):
            item.add_marker(pytest.mark.nightly)
            item.add_marker(pytest.mark.search)
        if LONG.search(item.name):
            item.add_marker(pytest.mark.nightly)
        if SLOW.search(item.name):
            item.add_marker(pytest.mark.slow)


def pytest_configure(config: pytest.Config) -> None:
    # Once a process, so it would hit whichever test comes first; test_simulation.py looks for it in
    # a process of its own.
    config.addinivalue_line("filterwarnings", "ignore::ampbridge.errors.SimulationWarning")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    import keras

    keras.utils.set_random_seed(0)


@pytest.fixture
def graphs_as_traced() -> Iterator[None]:
    """Grappler orders sums anew in each graph: plain Keras' losses differ by a bit between two runs."""
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
