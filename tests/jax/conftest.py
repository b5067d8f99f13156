"""JAX in this process, with modules of flax and transformations of optax."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator

import pytest
from nightly import NIGHTLY

from ampbridge_testing import interruption

SLOW = re.compile(
    r"an_interrupted_step_has_not_happened|ctrl_c_leaves|leaves?_nothing|keeps_nothing"
    r"|four_threads_each_train|no_argument_of_a_|no_field_of_a_recipe_is_ignored|a_forged_slot"
    r"|a_copy_of_a_step_goes_on|within_a_region_are_those_outside|\[eager|[-_]eager"
    r"|the_lens_sees_each_turn|cpu_can_run_in_float16|test_convnet|test_transformer\["
    r"|an_epoch_on_the_device.*(\[O[02]|'O2')|several_seeds|on_eight_devices"
    r"|each_update_draws_anew|a_resumed_run_has_the_same_bits"
    r"|few_weights_move_without"
    r"|how_many_weights_move|a_resumed_run_with_low_slots|another_optimizer_leaves_no_float32_slots"
    r"|numpy_adopts|adopting_weights_says|two_optimizers_in_turn|a_refused_optimizer_leaves|linen_train_as_by_hand"
    r"|a_dropped_step_frees|a_donated_state_that_is_lost|rounded_with_a_warning\[by hand|it_trains_as_in"
    r"|bytes_of_moments|slots_draw_apart|moments_rounded_by_chance|makes_slots_float32|slots_are_loaded_into"
    r"|undecorate_keeps_the_values.*\[(None|float32|kahan)"
)
"""What takes seconds, mostly of the shared suite: XLA compiles each op that an eager step meets first.
A step on JAX is compiled unless it is asked not to be."""


BY_NIGHT = re.compile(
    r"kahan_is_|rounding_by_chance_moves|a_load_into_another_choice.*\[(?!float32-stochastic)"
    r"|it_trains_as_in_float32.*O1:float16-False"
    r"|(same_bits|adopts.*|weights_move|the_values)\[kahan"
)
"""What takes longest, and asks of JAX again what others ask: its "kahan" is float32, and the models train
in bfloat16 eagerly, and in float16 compiled."""


@pytest.hookimpl(tryfirst=True)  # of what is left tests/sampled.py takes a third
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if BY_NIGHT.search(item.name):
            item.add_marker(pytest.mark.nightly)
            item.add_marker(pytest.mark.search)
        elif SLOW.search(item.name):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def some_lines_of_eager_steps(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C at each line of eager steps would take most of an hour; compiled ones are quick."""
    if NIGHTLY and "compiled" not in request.node.name:
        monkeypatch.setattr(interruption, "LINES_APART", 10)


if any(importlib.util.find_spec(name) is None for name in ("jax", "flax", "optax")):
    if "jax" in os.environ.get("AMPBRIDGE_REQUIRE", ""):
        raise ImportError(
            "AMPBRIDGE_REQUIRE asks for jax, which is not installed with flax and optax"
        )
    collect_ignore_glob = ["test_*.py"]
else:
    import jax

    @pytest.fixture
    def types_of_32_bits() -> Iterator[None]:
        """JAX as its users have it; the conformance suite's harness turns types of 64 bits on."""
        with jax.enable_x64(False):
            yield
