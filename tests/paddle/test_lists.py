"""The list set "paddle" against the lists of the installed Paddle."""

from __future__ import annotations

import paddle
import pytest

from ampbridge.policies import op_table

# A canonical op may have several names in Paddle, of which its lists hold only some.
SEVERAL_NAMES = {
    "scaled_dot_product_attention": "memory_efficient_attention is not listed, flash_attn is",
    "flash_attention": "of its five forms only flash_attn is listed",
    "max_pool2d": "with a mask it is max_pool2d_with_index, which is listed; pool2d is not",
    "pow": "pow is listed; elementwise_pow, for an exponent that is a tensor, is not",
    "norm": "pnorm is listed, but the op is called p_norm, so that nothing is denied",
    "hsigmoid_loss": "listed, but the op is called hierarchical_sigmoid",
}
# One name in Paddle, which belongs to another canonical op.
SHARED_NAME = {"count_nonzero": "counts with reduce_sum, of integers, which are never cast"}


@pytest.mark.parametrize(
    "level, dtype", [("O1", "float16"), ("O1", "bfloat16"), ("O2", "float16"), ("O2", "bfloat16")]
)
def test_paddle_list_set_is_the_installed_one(level: str, dtype: str) -> None:
    white = paddle.amp.amp_lists.white_list()[dtype][level]
    black = paddle.amp.amp_lists.black_list()[dtype][level]

    def native(name: str) -> str:
        return "allow" if name in white else "deny" if name in black else "promote"

    ours = op_table.op_list("paddle", level, dtype)
    named = {n: op.names["paddle"] for n, op in op_table.ops().items() if "paddle" in op.names}
    different = {
        name
        for name, spellings in named.items()
        if {native(spelling) for spelling in spellings} != {ours.category(name)}
    }
    # At O2 there are fewer black names, and so fewer differences.
    allowed = {*SEVERAL_NAMES, *SHARED_NAME}
    assert different == allowed if level == "O1" else different < allowed
    assert white | black <= {spelling for spellings in named.values() for spelling in spellings}
    assert ours.unlisted == "promote"


def test_every_kernel_name_of_the_table_exists() -> None:
    kernels = vars(paddle._C_ops)
    missing = {name for name in op_table.native_names("paddle_ops") if name not in kernels}
    assert missing == set()


def test_every_function_name_of_the_table_exists() -> None:
    from ampbridge_paddle._private import present

    for name in op_table.native_names("paddle_api"):
        assert callable(present(name)), name
