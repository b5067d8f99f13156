"""A rule that is accepted acts: every canonical op that Paddle has, denied and allowed.

The calls are those of tests/virtual_paddle. What an op returned is low if a later op that follows its
inputs (``sin``) returns 16-bit values for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from test_ops import is_low, tensors

import ampbridge as amp
from ampbridge.policies import op_table
from ampbridge_paddle.autocast.rules import has_effect

sys.path.insert(0, str(Path(__file__).parents[1] / "virtual_paddle"))
from op_cases import CASES, Case

SQUARE = (np.eye(4) * 2 + np.random.default_rng(0).uniform(0.1, 0.4, (4, 4))).astype(np.float32)
POSITIVE = (SQUARE @ SQUARE.T / 8).astype(np.float32)

# What those leave out. (Lambdas: a region replaces what modules hold.)
MORE = {
    "cholesky": Case(lambda x: paddle.linalg.cholesky(x), [POSITIVE]),
    "det": Case(lambda x: paddle.linalg.det(x), [SQUARE]),
    "eigh": Case(lambda x: paddle.linalg.eigh(x), [POSITIVE]),
    "eigvalsh": Case(lambda x: paddle.linalg.eigvalsh(x), [POSITIVE]),
    "inverse": Case(lambda x: paddle.linalg.inv(x), [SQUARE]),
    "matrix_power": Case(lambda x: paddle.linalg.matrix_power(x, 2), [SQUARE]),
    "multi_dot": Case(lambda x, y: paddle.linalg.multi_dot([x, y, x]), [SQUARE, POSITIVE]),
    "pinverse": Case(lambda x: paddle.linalg.pinv(x), [SQUARE]),
    "qr": Case(lambda x: paddle.linalg.qr(x), [SQUARE]),
    "slogdet": Case(lambda x: paddle.linalg.slogdet(x)[1], [SQUARE]),
    "solve": Case(lambda x, y: paddle.linalg.solve(x, y), [SQUARE, POSITIVE]),
    "svd": Case(lambda x: paddle.linalg.svd(x), [SQUARE]),
    "svdvals": Case(lambda x: paddle.linalg.svdvals(x), [SQUARE]),
    "cond": Case(lambda x: paddle.linalg.cond(x), [SQUARE]),
    "lu": Case(lambda x: paddle.linalg.lu(x), [SQUARE]),
    "triangular_solve": Case(lambda x, y: paddle.linalg.triangular_solve(x, y), [SQUARE, POSITIVE]),
    "cholesky_solve": Case(lambda x, y: paddle.linalg.cholesky_solve(x, y), [SQUARE, POSITIVE]),
    "matrix_exp": Case(lambda x: paddle.linalg.matrix_exp(x), [SQUARE]),
    "lstsq": Case(lambda x, y: paddle.linalg.lstsq(x, y), [SQUARE, POSITIVE]),
    "fft_rfft": Case(lambda x: paddle.fft.rfft(x).real(), [SQUARE]),
    "fft_fft": Case(lambda x: paddle.fft.fft(x).real(), [SQUARE]),
    "fft_rfft2": Case(lambda x: paddle.fft.rfft2(x).real(), [SQUARE]),
    **{
        f"fft_{name}": Case(lambda x, name=name: getattr(paddle.fft, name)(x), [SQUARE])
        for name in ("hfft", "irfft", "irfft2", "irfftn")
    },
    **{
        f"fft_{name}": Case(lambda x, name=name: getattr(paddle.fft, name)(x).real(), [SQUARE])
        for name in ("fft2", "fftn", "ifft", "ifft2", "ifftn", "ihfft", "rfftn")
    },
    "istft": Case(lambda x: paddle.signal.istft(paddle.signal.stft(x, 4), 4), [SQUARE]),
    "stft": Case(lambda x: paddle.signal.stft(x, 4, center=False).real(), [SQUARE]),
    "huber_loss": Case(lambda x, y: F.smooth_l1_loss(x, y, "none"), [SQUARE, POSITIVE]),
    "pdist": Case(lambda x: paddle.pdist(x), [SQUARE]),
    "floor_divide": Case(lambda x, y: paddle.floor_divide(x, y), [SQUARE, POSITIVE]),
    "rrelu": Case(lambda x: F.rrelu(x, training=False), [SQUARE - 1]),
}


# What they return is no floating-point number; there is no low transform; the loss of an allowed
# cross-entropy is float32 as on a GPU.
NEVER_LOW = {
    *("isfinite", "less", "logical_and", "stft", "cross_entropy"),
    *("fft_fft", "fft_fft2", "fft_fftn", "fft_ifft", "fft_ifft2", "fft_ifftn"),
    *("fft_ihfft", "fft_rfft", "fft_rfft2", "fft_rfftn"),
}
# Of whole numbers, of complex ones, of several processes, fused for GPUs, or without a call here yet.
UNCALLED = {
    *("all", "any", "argmax", "argmin", "argsort", "bincount", "check_numerics", "cholesky_inverse"),
    *("conv_backward", "count_nonzero", "ctc_loss", "deformable_conv2d", "eig", "eigvals", "equal"),
    *("fake_quantize", "flash_attention"),
    *("fractional_max_pool2d", "fractional_max_pool3d", "frobenius_norm", "fused_feedforward"),
    *("fused_linear", "fused_softmax_mask", "greater", "greater_equal", "gumbel_softmax", "hinge_loss"),
    *("householder_product", "hsigmoid_loss", "isinf", "isnan", "l2_loss", "less_equal"),
    *("logical_not", "lu_solve", "matrix_rank", "max_unpool2d", "max_unpool3d", "multi_head_attention"),
    *("multinomial", "nanquantile", "not_equal", "nuclear_norm", "one_hot", "ormqr", "rms_norm"),
    *("parallel_cross_entropy", "polar", "rnnt_loss", "rotary_embedding", "scatter_nd"),
    *("sync_batch_norm", "view_as_complex"),
}  # fmt: skip


def called() -> Iterator[tuple[str, Case]]:
    for name, case in CASES.items():
        if name in op_table.ops():
            yield name, case
    yield from MORE.items()


def _looked_up(run: Callable[..., Any]) -> Callable[..., Any]:
    """``run`` where its module has it, as a region replaces it; not what the case has held since."""
    return getattr(sys.modules.get(run.__module__, None), run.__name__, run)


def runs_low(op: str, case: Case, kind: str, arrives: str) -> bool | None:
    """Whether the op ran low; None where it returns no floating-point numbers."""
    made = [] if case.layer is None else [case.layer()]
    inputs = [x.astype(arrives) for x in tensors(case.inputs)]
    policy = amp.Policy("O1", "bfloat16", **{kind: [op]})
    with amp.autocast(policy, "paddle"):
        output: Any = _looked_up(case.run)(*made, *inputs)
        first = output[0] if isinstance(output, (list, tuple)) else output
        return is_low(first, "bfloat16") if paddle.is_floating_point(first) else None


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "arrives"), [("deny", "bfloat16"), ("allow", "float32")])
def test_every_rule_acts(kind: str, arrives: str) -> None:
    never = NEVER_LOW if kind == "allow" else set()
    found = {op: runs_low(op, case, kind, arrives) for op, case in called() if op not in never}
    assert {op for op, low in found.items() if low is (kind == "deny")} == set()


@pytest.mark.slow
def test_every_op_that_has_an_effect_is_called() -> None:
    claimed = {op.name for op in op_table.ops().values() if has_effect(op)}
    assert claimed - {op for op, _ in called()} == UNCALLED
