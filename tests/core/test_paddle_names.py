"""Paddle's list entries, against what its dispatcher was seen to do with them (``tests/paddle``)."""

import pytest

from ampbridge.policies import op_table
from ampbridge.policies import paddle_names as names


@pytest.mark.parametrize(
    "entry, canonical",
    [
        ("elementwise_add", {"add"}),
        ("reduce_sum", {"sum"}),
        ("softmax_with_cross_entropy", {"cross_entropy"}),
        ("lookup_table_v2", {"embedding"}),
        ("bilinear_interp_v2", {"interpolate_bilinear"}),
        ("batch_norm", {"batch_norm"}),
        ("softmax", {"softmax"}),
        # one kernel, several canonical ops: all of them move
        ("conv2d", {"conv1d", "conv2d"}),
        ("matmul_v2", {"inner", "matmul", "mm", "tensordot"}),
        ("flash_attn", {"flash_attention", "scaled_dot_product_attention"}),
    ],
)
def test_an_entry_stands_for_every_op_that_is_looked_up_under_it(entry, canonical):
    reading = names.paddle_list([entry])
    assert set(reading.canonical) == canonical
    assert not reading.ignored
    assert not reading.lost
    assert not reading.notes


@pytest.mark.parametrize(
    "entry, meant",
    [
        ("matmul", '{"matmul_v2", "linear_v2"}'),
        ("mul", '{"linear_v2"}'),
        ("linear", '{"linear_v2"}'),
        ("add", '{"elementwise_add"}'),
        ("cross_entropy", '{"softmax_with_cross_entropy"}'),
        ("embedding", '{"lookup_table_v2"}'),
        ("pnorm", '{"p_norm"}'),  # stands in Paddle's own black list, and never matches
        ("paddle.nn.functional.softmax", '{"softmax"}'),
        ("softmx", '{"softmax"}'),
    ],
)
def test_an_entry_that_paddle_takes_no_notice_of(entry, meant):
    reading = names.paddle_list([entry], "custom_white_list")
    assert reading.canonical == ()
    remark = reading.ignored[entry]
    assert f"{entry!r} in custom_white_list has no effect" in remark.message
    assert f"custom_white_list={meant} in Paddle" in remark.hint


def test_matmul_is_told_as_both_ops_that_are_usually_meant():
    hint = names.paddle_list(["matmul"]).ignored["matmul"].hint
    assert hint.endswith('deny = ["matmul", "linear"] in a recipe.')


def test_an_op_made_of_several_can_be_had_in_a_recipe_alone():
    hint = names.paddle_list(["mse_loss"]).ignored["mse_loss"].hint
    assert "nothing in Paddle" in hint
    assert 'deny = ["mse_loss"] in a recipe' in hint


def test_mean_is_mean_all():
    reading = names.paddle_list({"mean"}, "custom_white_list")
    assert reading.canonical == ()
    assert "stands for mean_all" in reading.ignored["mean"].message
    assert 'custom_white_list={"reduce_mean", "mean"} in Paddle' in reading.ignored["mean"].hint


def test_mean_beside_reduce_mean_is_what_it_seems():
    assert names.paddle_list({"mean", "reduce_mean"}) == names.ListReading(("mean",), {}, {}, {})


def test_sum_is_add_n():
    reading = names.paddle_list({"sum"})
    assert reading.canonical == ("add_n",)
    assert "paddle.sum is 'reduce_sum'" in reading.notes["sum"].message


def test_what_no_canonical_op_stands_for_is_lost():
    reading = names.paddle_list({"scale"})
    assert reading.canonical == ()
    assert set(reading.lost) == {"scale"}


def test_static_graphs_know_the_oldest_names():
    old = ["mul", "matmul", "lookup_table", "cross_entropy"]
    reading = names.paddle_list(old, static=True)
    assert reading.canonical == ("cross_entropy", "embedding", "linear", "matmul")
    assert not reading.ignored


def test_an_entry_that_is_no_string_has_no_effect():
    assert set(names.paddle_list([3, "softmax"]).ignored) == {"3"}


def test_the_names_of_an_op_are_read_as_that_op():
    """For every op that Paddle can list apart from others."""
    apart = [op for op in op_table.ops() if names.paddle_names(op) and not names.moved_with(op)]
    assert len(apart) > 150
    for op in apart:
        reading = names.paddle_list(names.paddle_names(op))
        assert reading.canonical == (op,)
        assert not reading.ignored
        assert not reading.lost
        assert bool(reading.notes) == (op == "add_n")  # whose name is "sum"


def test_ops_that_move_together():
    assert names.moved_with("conv1d") == ("conv2d",)
    assert names.moved_with("softmax") == ()
    assert names.paddle_names("mse_loss") == ()
