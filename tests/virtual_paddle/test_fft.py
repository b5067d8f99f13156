"""Fourier transforms, which have no 16-bit kernels on a GPU either: a policy that denies them is followed."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest

import ampbridge as amp

REAL = np.random.default_rng(0).integers(-4, 4, (4, 6)).astype(np.float32)  # which 16 bits hold
EYE = np.eye(6, dtype=np.float32)
NAMES = ("fft", "fft2", "fftn", "ifft", "ifft2", "ifftn", "rfft", "rfft2", "rfftn", "irfft")
MORE_NAMES = ("irfft2", "irfftn", "hfft", "ihfft")


@pytest.mark.parametrize("lists", ["torch", "paddle", "tensorflow"])
@pytest.mark.parametrize("name", [*NAMES, *MORE_NAMES])
def test_a_denied_transform_of_a_low_tensor_is_in_float32(name: str, lists: Any) -> None:
    for denied in (f"fft_{name}", f"paddle.fft:{name}"):
        with amp.autocast(amp.Policy("O1", "float16", lists=lists, deny=[denied]), "paddle"):
            low = paddle.matmul(paddle.to_tensor(REAL), paddle.to_tensor(EYE))
            found = getattr(paddle.fft, name)(low)
        assert low.dtype == paddle.float16
        expected = getattr(np.fft, name)(REAL)
        assert np.allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)
