"""Layouts of tensors that the device lacks: what makes one is refused, with words.

Dense tensors and sparse ones of coordinates are its own. Tensors of other layouts keep their numbers
where ``kernels.cpp`` does not look for them; torch ends the process over some.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import torch

from ampbridge.errors import UnsupportedError


class Layout(NamedTuple):
    """What is refused.

    Attributes:
        makers: matches the ops that make such tensors of others.
        key: the dispatch key of such tensors, without the device.
        name: as users know them.
        hint: what to write in their place.
    """

    makers: str
    key: str
    name: str
    hint: str


LAYOUTS = (
    Layout(
        r"aten::_nested_(tensor_from|from_padded|view_from_buffer).*",
        "NestedTensor",
        "nested tensors of strided layout",
        "layout=torch.jagged; torch.backends.mha.set_fastpath_enabled(False), if it was set to True",
    ),
    Layout(
        r"aten::_?(to_)?sparse_(csr|csc|bsr|bsc|compressed)(_tensor.*)?",
        "SparseCsr",
        "compressed sparse tensors (torch.sparse_csr and its like)",
        "x.to_sparse(), or torch.sparse_coo_tensor(indices, values, size)",
    ),
    Layout(
        r"aten::(quantize_per_.*|_empty_.*affine_quantized|_make_per_.*_quantized_tensor)",
        "Quantized",
        "quantized tensors",
        "rehearse the script without quantization",
    ),
)

_kept: list[torch.library.Library] = []  # what they register ends with them


def refuse(device: str) -> None:
    """Refuse them on a device, by the name of its dispatch key.

    Torch's fast path for the evaluation of an ``nn.TransformerEncoder``, which makes nested tensors of
    a padding mask, is switched off: its layers are called instead.
    """
    torch.backends.mha.set_fastpath_enabled(False)
    ops = torch.library.Library("aten", "IMPL")
    others = torch.library.Library("_", "IMPL")
    _kept.extend((ops, others))
    for layout in LAYOUTS:
        kernel = _refusing(layout)
        others.fallback(kernel, layout.key + device)
        for op in torch._C._dispatch_get_all_op_names():
            if re.fullmatch(layout.makers, op.partition(".")[0]):
                for layout_of_it in (
                    "",
                    "Sparse",
                    layout.key,
                ):  # which it is given, or told to make
                    ops.impl(op.removeprefix("aten::"), kernel, layout_of_it + device)


def _refusing(layout: Layout) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        msg = f"The virtual CUDA device has no {layout.name}.\nHint: {layout.hint}"
        raise UnsupportedError(msg)

    return kernel
