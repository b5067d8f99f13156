"""Calls of the canonical ops: torch's own samples (``op_db``), and a few for what they leave out."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_map

from ampbridge.policies import op_table

SAMPLES = slice(0, 12, 3)  # of each op's in `op_db`; the first are often the smallest


class Call(NamedTuple):
    """``run(*args, **kwargs)`` is the canonical op ``op``; what is float32 among them can be low.

    ``refused``: the 16-bit dtypes that CUDA has no kernel for; None where torch does not tell.
    """

    op: str
    name: str
    run: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    refused: frozenset[torch.dtype] | None = None

    def on(self, device: str, dtype: torch.dtype) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Copies of the arguments on ``device``, float32 as ``dtype``."""

        def moved(value: Any) -> Any:
            if isinstance(value, nn.Module):
                moved_layer = _copied(value).to(device)
                return moved_layer if dtype is torch.float32 else moved_layer.to(dtype)
            if isinstance(value, Tensor):
                there = value.detach().to(device)
                there = there.to(dtype) if there.dtype is torch.float32 else there
                wants = value.requires_grad and (there.is_floating_point() or there.is_complex())
                return there.requires_grad_(wants)
            if isinstance(value, torch.device):
                return torch.device(device)
            return device if isinstance(value, str) and value == "cpu" else value

        args, kwargs = tree_map(moved, (self.args, self.kwargs))
        return args, kwargs


def _copied(layer: nn.Module) -> nn.Module:
    import copy

    return copy.deepcopy(layer)


def calls() -> Iterator[Call]:
    """All of them, with the same numbers each time."""
    seen = set()
    for info in op_db:
        op = canonical(info)
        if info.name == "sparse.mm":  # its samples reduce, which the CPU alone does
            continue
        if op is not None and torch.float32 in info.dtypes:
            seen.add(op)
            yield from _samples(op, info)
    for op, run, arguments in _others():
        if op not in seen:
            torch.manual_seed(0)
            yield Call(op, op, run, tuple(map(_made, arguments)), {})


def without_calls() -> set[str]:
    """The canonical ops that torch has and nothing here calls."""
    spelled = {op.name for op in op_table.ops().values() if {"torch", "aten"} & set(op.names)}
    return spelled - {call.op for call in calls()}


def canonical(info: OpInfo) -> str | None:
    """The canonical op of one of ``op_db``; None where the op table lacks it."""
    plain = info.name.removeprefix("nn.functional.").removeprefix("special.")
    for name in (info.name, plain, f"torch.{info.name}", info.aten_name):
        for namespace in ("torch", "aten"):
            owners = op_table.native_names(namespace).get(name)
            if owners:
                return owners[0]
    return None


def _samples(op: str, info: OpInfo) -> Iterator[Call]:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    # It looks through all frames for a test of unittest, which under pytest is a fifth of the time.
    with mock.patch.object(common_utils, "extract_test_fn", return_value=None):
        samples = info.sample_inputs("cpu", torch.float32, requires_grad=info.supports_autograd)
    name = f"{info.name} {info.variant_test_name}".strip()
    lows = {torch.float16, torch.bfloat16}
    refused = frozenset(lows - set(info.supported_dtypes("cuda")))
    for sample in islice(samples, SAMPLES.start, SAMPLES.stop, SAMPLES.step):
        yield Call(op, name, info.op, (sample.input, *sample.args), dict(sample.kwargs), refused)


# -- what `op_db` leaves out

Shape = tuple[int, ...]
M, V, IMAGE, SEQUENCE, STATE = (6, 8), (8,), (2, 4, 6, 6), (5, 3, 8), (3, 8)


def _made(argument: Any) -> Any:
    """A layer; numbers of a shape; or the argument itself."""
    if isinstance(argument, tuple) and all(isinstance(size, int) for size in argument):
        return torch.randn(argument, requires_grad=True)
    return argument() if isinstance(argument, _Layer) else argument


class _Layer(NamedTuple):
    kind: type[nn.Module]
    settings: dict[str, Any]

    def __call__(self) -> nn.Module:
        return self.kind(**self.settings)


def _layer(kind: type[nn.Module], **settings: Any) -> _Layer:
    return _Layer(kind, settings)


def _applied(layer: nn.Module, *inputs: Tensor) -> Any:
    return layer(*inputs)


def _classes(x: Tensor) -> Tensor:
    return torch.arange(len(x), device=x.device) % x.shape[1]


def _attended(layer: nn.Module, x: Tensor) -> Any:
    return layer(x, x, x)


def _resized(mode: str) -> Callable[[Tensor], Tensor]:
    return lambda x: F.interpolate(x, scale_factor=2.0, mode=mode)


def _others() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    recurrent = {"input_size": 8, "hidden_size": 8}
    for op, kind in (("lstm", nn.LSTM), ("gru", nn.GRU), ("rnn", nn.RNN)):
        yield op, _applied, (_layer(kind, **recurrent), SEQUENCE)
    yield "gru_cell", _applied, (_layer(nn.GRUCell, **recurrent), STATE, STATE)
    yield "rnn_cell", _applied, (_layer(nn.RNNCell, **recurrent), STATE, STATE)
    lstm_cell = lambda layer, x, h, c: layer(x, (h, c))  # noqa: E731
    yield "lstm_cell", lstm_cell, (_layer(nn.LSTMCell, **recurrent), STATE, STATE, STATE)
    attention = _layer(nn.MultiheadAttention, embed_dim=8, num_heads=2)
    yield "multi_head_attention", _attended, (attention, SEQUENCE)
    yield "cross_entropy", lambda x: F.cross_entropy(x, _classes(x)), (M,)
    smooth = lambda x: F.cross_entropy(x, _classes(x), label_smoothing=0.1)  # noqa: E731
    yield "cross_entropy", smooth, (M,)
    yield "cross_entropy", lambda x, y: F.cross_entropy(x, y.softmax(-1)), (M, M)
    pictures = lambda x: F.cross_entropy(x, x.argmax(1), reduction="sum")  # noqa: E731
    yield "cross_entropy", pictures, (IMAGE,)
    yield "binary_cross_entropy", lambda x: F.binary_cross_entropy(x.sigmoid(), x > 0), (M,)
    yield "gaussian_nll_loss", lambda x, y, v: F.gaussian_nll_loss(x, y, v.square()), (M, M, M)
    yield "multilabel_soft_margin_loss", lambda x: F.multilabel_soft_margin_loss(x, x > 0), (M,)
    yield "local_response_norm", lambda x: F.local_response_norm(x, 2), (IMAGE,)
    yield "normalize", F.normalize, (M,)
    yield "weight_norm", lambda v, g: torch._weight_norm(v, g), (M, (6, 1))
    yield "softmin", lambda x: F.softmin(x, -1), (M,)
    yield "gumbel_softmax", lambda x: F.gumbel_softmax(x, dim=-1), (M,)
    yield "gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), (M,)
    yield "tanh_shrink", F.tanhshrink, (M,)
    yield "softsign", F.softsign, (M,)
    yield "frobenius_norm", lambda x: torch.norm(x, "fro"), (M,)
    yield "nuclear_norm", lambda x: torch.norm(x, "nuc"), (M,)
    yield "lp_pool2d", lambda x: F.lp_pool2d(x, 2.0, 2), (IMAGE,)
    yield "interpolate_nearest", _resized("nearest"), (IMAGE,)
    yield "interpolate_bicubic", _resized("bicubic"), (IMAGE,)
    yield "interpolate_bilinear", _resized("bilinear"), (IMAGE,)
    yield "interpolate_linear", _resized("linear"), ((2, 4, 6),)
    yield "interpolate_trilinear", _resized("trilinear"), ((1, 2, 3, 3, 3),)
    yield "affine_grid", lambda x: F.affine_grid(x, [2, 1, 4, 4]), ((2, 2, 3),)
    yield "reflection_pad", lambda x: F.pad(x, (1, 1), "reflect"), (STATE,)
    yield "replication_pad", lambda x: F.pad(x, (1, 1), "replicate"), (STATE,)
    yield "stop_gradient", lambda x: x.detach() * x, (M,)
    yield "tensorinv", lambda x: torch.linalg.tensorinv(x.reshape(2, 3, 6)), ((6, 6),)
    yield "tensorsolve", lambda a, b: torch.linalg.tensorsolve(a, b), ((6, 6), (6,))
    yield "istft", lambda x: torch.istft(torch.complex(x, x), 14, window=None), ((8, 6),)
    yield "depthwise_conv2d", lambda x, w: F.conv2d(x, w, groups=4), (IMAGE, (4, 1, 3, 3))
    yield "conv_tbc", torch.conv_tbc, (SEQUENCE, (2, 8, 4), (4,))
    yield "col2im", lambda x: F.fold(x, (4, 4), (2, 2)), ((1, 8, 9),)
    yield "sparse_matmul", lambda x, y: torch.sparse.mm(x.detach().to_sparse(), y), (M, (8, 4))
    yield "fake_quantize", lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255), (M,)
    yield "gather_nd", lambda x: x[_classes(x)], (M,)
