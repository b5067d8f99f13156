"""Which entries of Paddle's lists have an effect: asked of its dispatcher."""

import subprocess
import sys
from pathlib import Path

import paddle
import pytest
from paddle_oracle import native_decisions

from ampbridge.policies.paddle_names import paddle_list

SCRIPTS = Path(__file__).parents[2] / "scripts"


def decisions(**lists):
    return native_decisions(lambda: paddle.amp.auto_cast(dtype="bfloat16", **lists))


@pytest.fixture(scope="module")
def usual():
    return decisions()


def changed(usual, **lists):
    return {call for call, dtype in decisions(**lists).items() if dtype != usual[call]}


@pytest.mark.parametrize(
    "name",
    ["matmul", "mul", "linear", "add", "sum", "cross_entropy", "pnorm", "hsigmoid_loss"],
)
def test_entries_without_effect(usual, name):
    """Those that are read as ignored, or as an op that is none of these calls."""
    assert changed(usual, custom_black_list={name}) == set()
    reading = paddle_list([name])
    assert name in reading.ignored or reading.canonical == ("add_n",)


@pytest.mark.parametrize(
    "name, calls, op",
    [
        ("conv2d", {"conv2d"}, "conv1d"),
        ("einsum", {"einsum"}, "einsum"),
        # Paddle's lists have pnorm and hsigmoid_loss, which its dispatcher never asks for.
        ("p_norm", {"norm"}, "norm"),
        ("hierarchical_sigmoid", {"hsigmoid_loss"}, "hsigmoid_loss"),
    ],
)
def test_denied(usual, name, calls, op):
    assert calls <= changed(usual, custom_black_list={name})
    assert op in paddle_list([name]).canonical


def test_denied_matmul_v2_is_every_product_of_matrices(usual):
    moved = changed(usual, custom_black_list={"matmul_v2"})
    assert {"matmul", "x @ w", "mm", "linear"} <= moved  # linear: of this CPU build
    assert {"matmul", "mm"} <= set(paddle_list(["matmul_v2"]).canonical)


@pytest.mark.parametrize(
    "name, calls, op",
    [
        ("reduce_mean", {"mean"}, "mean"),
        ("reduce_sum", {"sum"}, "sum"),
        ("softmax", {"softmax"}, "softmax"),
        ("elementwise_add", {"t + float32"}, "add"),
        ("lookup_table_v2", {"embedding"}, "embedding"),
    ],
)
def test_allowed(usual, name, calls, op):
    assert calls <= changed(usual, custom_white_list={name})
    assert paddle_list([name]).canonical == (op,)


def test_mean_leaves_paddle_mean_alone(usual):
    assert "mean" not in changed(usual, custom_white_list={"mean"})
    assert paddle_list(["mean"]).canonical == ()


def test_the_table_of_names_is_this_paddle_s():
    command = [sys.executable, str(SCRIPTS / "write_paddle_names.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0
