"""Inputs of two floating-point dtypes: promoted where Paddle promotes, else refused as a GPU's kernels do.

The CPU's kernels read all inputs as one dtype too, so that float32 beside float64 on the CPU tells what
16 bits beside float32 do on a GPU; but for normalizations, whose GPU kernels have parameters in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import paddle
import pytest
from op_cases import CASES, Case
from paddle.nn import functional as F
from paddle_reference import LOW

LOW_DTYPES = pytest.mark.parametrize("dtype", LOW)
REFUSED = r"\(InvalidArgument\) The type of data we are trying to retrieve \({}\) does not match"

# Case -> why the device does not what the CPU does.
OTHERWISE = {
    "layer_norm": "a GPU takes parameters of either dtype",
    "kl_div": "its Python casts float32 to float64, and casts no 16 bits",
    "cosine_embedding_loss": "its Python refuses 16 bits",
    "gaussian_nll_loss": "its Python refuses 16 bits",
}
OF_SEVERAL = {
    name: case for name, case in CASES.items() if len(case.inputs) > 1 and case.layer is None
}


def refused(case: Case, device: str, dtypes: Sequence[str]) -> bool:
    """Whether ``case`` raises, its first input in one dtype and the others in another."""
    paddle.set_device(device)
    first, others = dtypes
    inputs = [
        x.astype(first if i == 0 else others) if x.is_floating_point() else x
        for i, x in enumerate(map(paddle.to_tensor, case.inputs))
    ]
    try:
        case.run(*inputs)
    except (ValueError, TypeError, RuntimeError):
        return True
    return False


@LOW_DTYPES
def test_the_device_refuses_what_the_cpu_s_kernels_refuse(dtype: str) -> None:
    for order in (1, -1):
        differing = {
            name
            for name, case in OF_SEVERAL.items()
            if refused(case, "virtual_gpu", (dtype, "float32")[::order])
            != refused(case, "cpu", ("float32", "float64")[::order])
        }
        assert differing <= set(OTHERWISE)


@LOW_DTYPES
def test_products_refuse_in_the_kernel_s_words(dtype: str) -> None:
    low, wide = paddle.ones([2, 2], dtype), paddle.ones([2, 2])
    layer = paddle.nn.Linear(2, 2)
    for product in (paddle.matmul, paddle.mm, F.linear):
        with pytest.raises(ValueError, match=REFUSED.format("float32")):
            product(low, wide)
        with pytest.raises(ValueError, match=REFUSED.format(dtype)):
            product(wide, low)
    # Of these Paddle takes the kernel of the first input's dtype, of products that of the last one's.
    with pytest.raises(ValueError, match=REFUSED.format(dtype)):
        layer(low)
    with pytest.raises(ValueError, match=REFUSED.format(dtype)):
        F.conv2d(low.reshape([1, 1, 2, 2]), wide.reshape([1, 1, 2, 2]))


@LOW_DTYPES
def test_elementwise_arithmetic_promotes(dtype: str) -> None:
    low, wide = paddle.full([2], 1.5, dtype), paddle.full([2], 1 + 2.0**-12)
    for one, other in ((low, wide), (wide, low)):
        for result in (one + other, one * other, one - other, one / other):
            assert result.dtype == paddle.float32
    assert np.array_equal((low * wide).numpy(), np.full(2, 1.5 + 1.5 * 2.0**-12, np.float32))
    assert (low < wide).tolist() == [False, False]


@LOW_DTYPES
def test_normalizations_keep_their_parameters_in_float32(dtype: str) -> None:
    x, ones = paddle.randn([2, 3, 4]).astype(dtype), paddle.ones([3])
    statistics = paddle.zeros([3]), paddle.ones([3])
    assert F.batch_norm(x, *statistics, ones, ones).dtype == x.dtype
    assert F.layer_norm(x, [4], paddle.ones([4]), paddle.ones([4])).dtype == x.dtype
    assert F.instance_norm(x, weight=ones, bias=ones).dtype == x.dtype
    low = ones.astype(dtype)
    with pytest.raises(ValueError, match=REFUSED.format("float32")):
        F.batch_norm(x, *statistics, low, low)
    with pytest.raises(ValueError, match=REFUSED.format("float32")):
        F.instance_norm(x, weight=low, bias=low)
    with pytest.raises(ValueError, match=REFUSED.format("float32")):
        F.group_norm(x, 1, weight=ones, bias=ones)
