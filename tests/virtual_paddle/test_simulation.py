"""The simulation on the CPU, beside Paddle's own casts on the device: op by op, to the bit.

Under Paddle's lists the device runs ``paddle.amp.auto_cast`` and nothing of ours; under the others, which
it cannot spell, what the adapter gives a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatch
from typing import Any, NamedTuple

import paddle
import pytest
from comparing import Region, difference, findings, outcome
from op_cases import CASES

import ampbridge as amp
from ampbridge.policies import op_table
from ampbridge_paddle.autocast.casting import native_region
from ampbridge_paddle.autocast.rules import has_effect

pytestmark = pytest.mark.slow


class Known(NamedTuple):
    """Where an op differs: patterns of "lists level dtype"; why."""

    where: tuple[str, ...]
    why: str


PARTS = "several kernels in Paddle: computed as one and rounded once, on a device one by one"
ASKS = "its Python asks for x.dtype, which reads float32 where low precision is a mark"
REFUSES = "its Python refuses 16-bit tensors; of the simulation it sees float32"
FUSED = "computed as one kernel, as flash attention is; the virtual device has its parts alone"
SUMS = "the gradients of several uses are summed in float32; on a device each sum is rounded"
RESIDUAL = "its gradient reads a result that Python does not get, and that a device has rounded"
NAMED = "one op to ampbridge, of which Paddle's lists name another kernel"
NEVER = (
    "Paddle casts the inputs of rnn under none of its lists; the simulation goes by the policy's"
)

# One row for each op that is not equal to the bit. A row too many fails, and so does one too few.
KNOWN: Mapping[str, Known] = {
    "scaled_dot_product_attention": Known(("*",), FUSED),
    "used twice": Known(("*",), SUMS),
    "used three times": Known(("*",), SUMS),
    "smooth_l1_loss": Known(("paddle O2 *", "tensorflow * bfloat16"), RESIDUAL),
    "x ** y": Known(("paddle O1 *",), NAMED),
    "slice": Known(("tensorflow O1 *",), NAMED),
    "lstm": Known(("torch *", "safe *", "tensorflow * float16"), NEVER),
    "gru": Known(("torch *", "safe *", "tensorflow * float16"), NEVER),
    "rnn": Known(("torch *", "safe *", "tensorflow * float16"), NEVER),
    # its Python
    "masked_fill": Known(("*",), ASKS),
    "nan_to_num": Known(("*",), REFUSES),
    "cosine_embedding_loss": Known(("paddle *", "tensorflow O2 *"), REFUSES),
    "gaussian_nll_loss": Known(("*",), REFUSES),
    "hinge_embedding_loss": Known(("paddle O2 *", "tensorflow O2 bfloat16"), ASKS),
    "soft_margin_loss": Known(("paddle O2 *",), ASKS),
    "nanmean": Known(("paddle O2 *", "tensorflow * bfloat16"), ASKS),
    "nansum": Known(("tensorflow O1 bfloat16",), ASKS),
    "rnn_cell": Known(("tensorflow O2 *",), ASKS),
    "lstm_cell": Known(("tensorflow O2 bfloat16",), ASKS),
    "gru_cell": Known(("tensorflow O2 bfloat16",), ASKS),
    "quantile": Known(("paddle *", "torch *", "tensorflow O2 *"), ASKS),
    "var": Known(("paddle *", "torch *", "tensorflow * bfloat16"), ASKS),
    "std": Known(("paddle *", "torch *", "tensorflow * bfloat16"), ASKS),
    "normalize": Known(("paddle *", "tensorflow * bfloat16"), ASKS),
    "pairwise_distance": Known(("*",), ASKS),
    "triplet_margin_loss": Known(("*",), ASKS),
    # several kernels
    "cosine_similarity": Known(("paddle *", "tensorflow * bfloat16"), PARTS),
    "poisson_nll_loss": Known(("*",), PARTS),
    "sigmoid_focal_loss": Known(("paddle *", "torch *"), PARTS),
    "local_response_norm": Known(("paddle * float16", "tensorflow O2 float16"), PARTS),
    "glu": Known(("torch *", "safe *", "tensorflow O2 *"), PARTS),
    "logaddexp": Known(("torch *",), PARTS),
    "multi_margin_loss": Known(("tensorflow O2 *",), PARTS),
    "norm": Known(("tensorflow * bfloat16",), PARTS),
    "cdist": Known(("tensorflow * bfloat16",), PARTS),
    "mse_loss": Known(("tensorflow * bfloat16",), PARTS),
    "margin_ranking_loss": Known(("tensorflow O2 bfloat16",), PARTS),
    "multilabel_soft_margin_loss": Known(("tensorflow O2 *",), PARTS),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize(
    "lists", ["paddle", "torch", "tensorflow", pytest.param("safe", marks=pytest.mark.nightly)]
)
def test_every_op_is_what_the_device_makes_of_it(lists: str, level: Any, dtype: Any) -> None:
    """Dtype, values, gradients; of float32 inputs and of 16-bit ones."""
    policy = amp.Policy(level, dtype, lists=lists)

    def native() -> Any:
        if lists == "paddle":
            return paddle.amp.auto_cast(level=level, dtype=dtype)
        return native_region(policy)

    different = different_ops(lambda: amp.autocast(policy, "paddle"), native, dtype)
    expected = {op for op, known in KNOWN.items() if holds(known, f"{lists} {level} {dtype}")}
    assert set(different) == expected, {
        op: different.get(op, "equal") for op in set(different) ^ expected
    }


def test_elements_are_counted() -> None:
    """For the report of a GPU. Values differ by rounding, and a dtype that differs is all of them."""
    known = {op for op in KNOWN if holds(KNOWN[op], "paddle O1 float16")}
    some = {"matmul", "masked_fill", "poisson_nll_loss", "nan_to_num", "softmax"}
    found = findings("virtual_gpu", "float16", frozenset(some))
    assert {op for op, kinds in found.differing.items() if kinds} == known & some
    assert (found.calls, found.random) == (10, frozenset())
    assert found.differing["nan_to_num"] == {"refused"}
    assert found.values["masked_fill"] == (48, 96)  # of float32 inputs, and of 16-bit ones
    equal, of = found.gradients["poisson_nll_loss"]
    assert 0 < equal < of == 192
    assert found.values["matmul"].equal == found.values["matmul"].of > 0


def holds(known: Known, configuration: str) -> bool:
    return any(fnmatch(configuration, pattern) for pattern in known.where)


def different_ops(simulated: Region, native: Region, dtype: str) -> dict[str, str]:
    """Op -> what differs."""
    found = {}
    for op, case in CASES.items():
        for low in (None, dtype):
            ours = outcome(case, simulated, "cpu", low)
            try:
                theirs = outcome(case, native, "virtual_gpu", low)
            except (AssertionError, ValueError) as refusal:
                found[op] = f"refused: {refusal}"
                continue
            differs = difference(ours, theirs)
            if differs is not None:
                found[op] = differs
    return found


# Of these a case would tell nothing: they return no floating-point numbers or are not differentiated,
# draw their results, need what the device lacks, or have no 16-bit kernels on a GPU either.
WITHOUT_A_CASE = {
    "integers or booleans": {
        *(
            "argmax",
            "argmin",
            "argsort",
            "all",
            "any",
            "count_nonzero",
            "bincount",
            "isnan",
            "isinf",
        ),
        *("equal", "not_equal", "less_equal", "greater", "greater_equal", "logical_not"),
        *("one_hot", "floor_divide", "matrix_rank"),
    },
    "random": {
        "rrelu",
        "gumbel_softmax",
        "multinomial",
        "fractional_max_pool2d",
        "fractional_max_pool3d",
    },
    "a GPU's, or another library's": {
        *("fused_linear", "fused_feedforward", "flash_attention", "rotary_embedding", "rms_norm"),
        *(
            "fused_softmax_mask",
            "ctc_loss",
            "rnnt_loss",
            "parallel_cross_entropy",
            "sync_batch_norm",
        ),
        *("deformable_conv2d", "hsigmoid_loss", "multi_head_attention", "fake_quantize"),
    },
    "no 16-bit kernel": {
        *("cholesky", "cholesky_solve", "cholesky_inverse", "qr", "householder_product", "ormqr"),
        *("svd", "svdvals", "eig", "eigh", "eigvals", "eigvalsh", "inverse", "pinverse", "solve"),
        *("triangular_solve", "lstsq", "lu", "lu_solve", "det", "slogdet", "cond", "matrix_exp"),
        *("matrix_power", "multi_dot", "nuclear_norm", "pdist", "max_unpool2d", "max_unpool3d"),
        *("stft", "istft", "polar", "view_as_complex"),
    },
    "the same kernel as another": {
        *("frobenius_norm", "huber_loss", "l2_loss", "hinge_loss", "conv_backward", "nanquantile"),
        *("logical_or", "scatter_nd", "check_numerics", "stop_gradient"),
    },
}


def test_every_op_that_paddle_casts_has_a_case_or_a_reason() -> None:
    ops = {op.name for op in op_table.ops().values() if has_effect(op)}
    left_out = set().union(*WITHOUT_A_CASE.values())
    without = {op for op in ops if not any(op == name.partition(",")[0] for name in CASES)}
    without = {op for op in without - left_out if not op.startswith("fft_")}
    assert without == set()
