"""`make test` runs a third of the cases of these tests, which take longest; `make test-slow` runs the others.

Folders begin at different cases, so each case of the shared suite runs on some of the backends. Without
`-m`, all cases run.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

ONE_OF = 3

SAMPLED = {
    "test_bisect": {"test_three_culprits_among_sixty_ops"},
    "test_compile": {"test_a_compiled_step_trains_as_the_eager_one"},
    "test_conformance": {
        "test_a_dropped_step_is_freed_at_once",
        "test_a_forged_slot_is_refused",
        "test_a_loaded_step_goes_on_bit_by_bit",
        "test_a_part_of_a_model_is_trained_without_a_word",
        "test_a_skipped_step_at_O2_leaves_every_bit",
        "test_a_skipped_training_step_leaves_every_bit",
        "test_a_step_keeps_nothing",
        "test_a_step_takes_containers",
        "test_a_step_under_another_policy_than_the_decorated_model_s_is_refused",
        "test_it_imports_no_other_framework",
        "test_no_argument_of_a_step_is_ignored",
        "test_no_field_of_a_policy_is_ignored",
        "test_no_field_of_a_recipe_is_ignored",
        "test_steps_within_a_region_are_those_outside_of_it",
        "test_the_scale_follows_the_rule",
        "test_what_is_reset_leaves_no_gradients",
    },
    "test_copies": {"test_a_copy_goes_on_by_itself"},
    "test_decorate": {"test_undecorate_leaves_not_a_bit_behind"},
    "test_direct_calls": {"test_another_batch_has_its_own_trace"},
    "test_fit": {
        "test_fit_follows_the_rule_and_is_train_step",
        "test_fit_in_float16_scales_the_loss_by_our_rule",
        "test_fit_warns_of_no_other_region",
    },
    "test_function_ops": {"test_it_runs_as_a_whole_forward_and_backward"},
    "test_inputs": {
        "test_a_float32_first_layer_sees_the_inputs_as_they_are",
        "test_a_variable_may_be_the_input_of_a_layer",
    },
    "test_lens": {
        "test_a_look_gives_everything_back",
        "test_a_planted_fault_is_located_and_cured",
    },
    "test_masters": {
        "test_a_decorated_model_s_state_that_is_put_into_another_is_float32_there",
        "test_a_load_tells_once_of_the_slots_that_it_rounds",
        "test_a_resumed_run_with_low_slots_has_the_same_bits",
        "test_an_optimizer_that_is_made_after_decorating_trains_as_one_made_before",
        "test_an_update_of_any_optimizer_goes_to_a_number_next_to_it",
        "test_bytes_of_moments_also_of_another_optimizer_that_takes_over",
        "test_draws_do_not_depend_on_chunks_and_go_on_when_resumed",
        "test_float32_moments_that_are_loaded_are_rounded_with_a_warning",
        "test_float32_states_that_are_put_into_a_decorated_model_are_low_from_the_next_update_on",
        "test_float32_weights_that_are_put_into_low_ones_are_rounded_with_a_warning",
        "test_kahan_is_bit_equal_to_float32_masters_by_hand_resumed_half_way",
        "test_no_way_rounds_what_was_trained_in_float32_silently",
        "test_nothing_is_said_where_nothing_is_lost",
        "test_slots_draw_the_same_wherever_they_run",
        "test_small_updates_move_in_the_mean_and_draw_the_same_wherever_they_run",
        "test_steps_of_one_schedule_do_not_round_each_other_s_weights",
        "test_two_optimizers_in_turn_each_draw_anew",
    },
    "test_models": {"test_it_trains_as_in_float32"},
    "test_neutral": {"test_the_classes_are_along_the_axis_that_is_named"},
    "test_observing": {
        "test_census_equals_the_recorder_op_by_op",
        "test_ranges_equal_numpy_s_on_dumped_tensors",
        "test_simulated_ops_have_the_dtypes_of_native_ones",
        "test_the_census_is_the_recorder_s",
        "test_the_census_is_what_the_recorder_sees",
    },
    "test_op_names": {
        "test_a_denied_transform_of_16_bits_is_that_of_float32",
        "test_a_normalization_is_one_op",
    },
    "test_opaque_statements": {
        "test_what_is_not_understood_may_not_make_a_reading_assert_otherwise",
    },
    "test_ops": {"test_a_compiled_op_runs_in_the_dtype_of_its_category"},
    "test_pure": {"test_an_epoch_on_the_device_is_as_many_steps"},
    "test_source": {"test_deep_nesting_neither_crashes_nor_takes_long"},
    "test_stateful": {"test_its_products_are_low_and_its_arrays_stay_float32"},
    "test_step": {
        "test_a_skipped_step_changes_nothing",
        "test_clipping_is_that_of_keras_optimizers",
        "test_in_lockstep_with_keras",
        "test_unbuilt_models_and_optimizers_train",
    },
    "test_structure": {"test_a_step_sees_a_change"},
    "test_training": {
        "test_logits_of_attention_are_not_rounded",
        "test_loops_of_nnx_train",
        "test_recurrent_layers",
        "test_statistics_and_random_numbers_go_on",
        "test_the_gradient_of_a_bias_is_rounded_once",
    },
    "test_training_state": {
        "test_a_loaded_run_goes_on_bit_by_bit",
        "test_every_optimizer_goes_on_bit_by_bit",
        "test_training_goes_on_bit_by_bit",
    },
    "test_what_is_trained": {"test_layers_that_come_or_go_need_another_step"},
    "test_written_code": {
        "test_it_trains_as_the_module_by_hand",
        "test_scales_and_skips_are_ampbridge_s",
        "test_scales_and_skips_are_those_of_numpy",
    },
    "test_written_modules": {"test_each_program_s_recipe_is_written_for_every_target"},
}
"""By the name of the file. Times are those of `pytest --durations`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    found: defaultdict[tuple[Path, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        name = getattr(item, "originalname", item.name)
        if name in SAMPLED.get(item.path.stem, ()) and "slow" not in item.keywords:
            found[item.path, name].append(item)
    for cases in found.values():
        first = len(cases[0].path.parent.name)
        for place, item in enumerate(cases):
            if (place + first) % ONE_OF:
                item.add_marker(pytest.mark.slow)
