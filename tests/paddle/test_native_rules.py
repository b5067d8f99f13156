"""Against Paddle's own dispatcher: the simulation, and the lists that a GPU is given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import paddle
import pytest
from paddle.base import core
from paddle_oracle import arrays, calls, native_decisions
from paddle_reference import is_representable

import ampbridge as amp
from ampbridge_paddle.autocast import casting, execution
from ampbridge_paddle.autocast.casting import native_region

# Names of PADDLE'S lists, by hand: the canonical names' translation must arrive at these.
CUSTOM = {
    "default": ({}, {}),
    "custom": (
        {"allow": ["add", "softmax"], "deny": ["relu", "einsum"]},
        {
            "custom_white_list": {"elementwise_add", "softmax"},
            "custom_black_list": {"relu", "einsum"},
        },
    ),
    "deny matmul": ({"deny": ["matmul"]}, {"custom_black_list": {"matmul_v2", "matmul"}}),
    "allow mean": ({"allow": ["mean"]}, {"custom_white_list": {"reduce_mean", "mean"}}),
}

# Where a simulated region differs from the program that the oracle builds, and why.
DIFFERENCES = {
    # t ** 2: a program calls elementwise_pow, which Paddle does not list; eager Paddle calls pow, and
    # to us both are "pow". kl_div: a program is built by another path. normalize: it makes
    # full(dtype=x.dtype), which is float32 where the dtype is virtual. cross_entropy: its kernel is
    # bfloat16's, which the oracle tells, and its loss float32 (tests/virtual_paddle).
    **{key: {"t ** 2", "kl_div", "normalize", "cross_entropy"} for key in ["default", "custom"]},
    "allow mean": {"t ** 2", "normalize"},
    # linear is an op of its own to us; Paddle's, without a bias, is matmul.
    "deny matmul": {"linear"},
}

# The same of the lists for a GPU, which only differ in what is one op to us.
LIST_DIFFERENCES = {
    **{key: {"t ** 2"} for key in ["default", "custom", "allow mean"]},
    "deny matmul": {"linear"},
}


# At O2 Paddle lists fewer ops: neither pow is, nor the logarithm of which kl_div is made.
ONLY_AT_O1 = {"t ** 2", "kl_div"}
ONLY_AT_O2 = {"cross_entropy"}


def different_at(level: str, differences: set[str]) -> set[str]:
    return differences - (ONLY_AT_O2 if level == "O1" else ONLY_AT_O1)


def simulated_decisions(policy: amp.Policy) -> dict[str, str]:
    inputs = [paddle.to_tensor(a) for a in arrays()]
    with amp.autocast(policy, "paddle"):
        return {name: _decision(call()) for name, call in calls(*inputs).items()}


def _decision(output: Any) -> str:
    """By values: a following op keeps a tensor in bfloat16 if it is in bfloat16."""
    follows = paddle.sin(output)
    low = is_representable(output, "bfloat16") and is_representable(follows, "bfloat16")
    return "bfloat16" if low else "float32"


@pytest.mark.parametrize("case", CUSTOM)
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_simulation_decides_as_paddle_does(level: Any, case: str) -> None:
    changes, custom = CUSTOM[case]
    native = native_decisions(lambda: paddle.amp.auto_cast(level=level, dtype="bfloat16", **custom))
    simulated = simulated_decisions(amp.Policy(level, "bfloat16", lists="paddle", **changes))
    assert len(native) > 80
    different = {name for name in native if native[name] != simulated[name]}
    assert different == different_at(level, DIFFERENCES[case]), {
        name: (native[name], simulated[name]) for name in different
    }


@pytest.mark.parametrize("case", CUSTOM)
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_lists_given_to_a_gpu_are_paddle_s(level: Any, case: str) -> None:
    """Canonical names, translated: the same decisions as with Paddle's own spelling."""
    changes, custom = CUSTOM[case]
    policy = amp.Policy(level, "bfloat16", lists="paddle", **changes)
    native = native_decisions(lambda: paddle.amp.auto_cast(level=level, dtype="bfloat16", **custom))
    ours = native_decisions(lambda: native_region(policy))
    different = {name for name in native if ours[name] != native[name]}
    assert different == different_at(level, LIST_DIFFERENCES[case])


OTHER_NAMES = {"conv2d": "conv2d with bias", "interpolate_bilinear": "interpolate"}  # of the calls
FLOAT32_INPUTS = ("embedding", "bmm", "conv3d", "prelu")
LOW_INPUTS = (
    *("matmul", "softmax", "mean", "exp", "tanh", "conv2d", "layer_norm", "l1_loss"),
    "interpolate_bilinear",
)


@pytest.mark.parametrize("lists", ["torch", "safe", "tensorflow"])
def test_other_list_sets_on_a_gpu(lists: str) -> None:
    """Ops that Paddle lists and the policy does not, too, and functions made of several ops."""
    policy = amp.Policy("O1", "bfloat16", lists=lists)
    native = decisions_on_a_gpu(policy)
    # All inputs of these calls are low, or the op's rule does not depend on them.
    following = {
        **dict.fromkeys(LOW_INPUTS, "bfloat16"),
        **dict.fromkeys(FLOAT32_INPUTS, "float32"),
    }
    for op, follows in following.items():
        expected = {"allow": "bfloat16", "deny": "float32"}.get(policy.category(op), follows)
        assert native[OTHER_NAMES.get(op, op)] == expected, (op, policy)


@cache
def decisions_on_a_gpu(policy: amp.Policy) -> dict[str, str]:
    return native_decisions(lambda: native_region(policy))


def test_float32_inside_of_a_native_region() -> None:
    @contextmanager
    def nested() -> Iterator[None]:
        with native_region(amp.Policy("O1", "bfloat16")), native_region(amp.Policy("O0")):
            yield

    assert set(native_decisions(nested).values()) == {"float32"}


def test_native_lists_are_auto_cast_alone() -> None:
    policy = amp.Policy("O1", "bfloat16", lists="native")
    native = native_decisions(lambda: paddle.amp.auto_cast(level="O1", dtype="bfloat16"))
    assert native_decisions(lambda: native_region(policy)) == native


def test_paddle_ignores_a_name_that_is_not_its_own() -> None:
    """Why names are translated: this denies nothing (and says nothing)."""
    ignored = native_decisions(
        lambda: paddle.amp.auto_cast(dtype="bfloat16", custom_black_list={"matmul"})
    )
    assert ignored["matmul"] == "bfloat16"
    denied = amp.Policy("O1", "bfloat16", lists="paddle", deny=["matmul"])
    assert native_decisions(lambda: native_region(denied))["matmul"] == "float32"


def test_regions_on_a_gpu_restore_the_dispatcher() -> None:
    def state() -> tuple[Any, ...]:
        attributes = core._get_amp_attrs()
        white, black = core._get_amp_op_list()
        return attributes._amp_level, attributes._amp_dtype, set(white), set(black)

    def fail() -> None:
        with native_region(amp.Policy("O1", "bfloat16")):
            assert state() != before
            raise ZeroDivisionError

    paddle.enable_static()
    try:
        before = state()
        with pytest.raises(ZeroDivisionError):
            fail()
        assert state() == before
    finally:
        paddle.disable_static()


def test_arrays_are_not_representable() -> None:
    assert not any(is_representable(a, "bfloat16") for a in arrays() if a.dtype == np.float32)


@pytest.mark.parametrize("inner", [amp.Policy("O0"), amp.Policy("O1", "bfloat16", lists="safe")])
def test_a_region_inside_of_another_on_a_gpu(inner: amp.Policy, monkeypatch: Any) -> None:
    """Functions that are no kernel of their own follow the inner policy too."""
    monkeypatch.setattr(execution, "on_cpu", lambda: False)
    outer = amp.Policy("O2", "bfloat16", allow=["mse_loss", "l1_loss", "softmax"])
    low = []

    @contextmanager
    def nested() -> Iterator[None]:
        with native_region(outer), native_region(inner):
            low.append(casting.is_in_low_region())
            yield

    assert native_decisions(nested) == decisions_on_a_gpu(inner)
    assert low == [inner.level != "O0"]
    assert decisions_on_a_gpu(outer) != decisions_on_a_gpu(inner)


@pytest.mark.parametrize("lists", ["torch", "native"])
def test_paddle_is_told_the_level(lists: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    native = paddle.amp.auto_cast

    def auto_cast(**arguments: Any) -> Any:
        told.append((arguments["level"], arguments["dtype"]))
        return native(**arguments)

    monkeypatch.setattr(paddle.amp, "auto_cast", auto_cast)
    for level in ("O1", "O2"):
        told.clear()
        native_decisions(lambda: native_region(amp.Policy(level, "bfloat16", lists=lists)))  # noqa: B023
        assert told[0] == (
            level,
            "bfloat16",
        )  # the others are of functions with a rule of their own
