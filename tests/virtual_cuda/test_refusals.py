"""The virtual device refuses the dtypes and the numbers that CUDA refuses.

Torch checks them alike on both, so that what the CPU raises in the same dtypes is expected; where the
kernels differ, aten/src/ATen/native/cuda of torch 2.13 tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import op_cases
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

LARGE = 1e9  # more than float16 holds
LOWEST = torch.finfo(torch.float32).min  # less than bfloat16 holds

Inputs = dict[str, Tensor]
Use = Callable[[Inputs], Any]


def inputs(device: str) -> Inputs:
    """``x`` and ``h`` are the same numbers, in float32 and float16."""
    x = torch.linspace(0.1, 0.9, 12, device=device).reshape(3, 4)
    at = torch.tensor([0, 2], device=device)
    where = at[:, None].expand(2, 4)
    return {"x": x, "h": x.half(), "b": x.bfloat16(), "mask": x > 0.5, "at": at, "where": where}


def put(target: Tensor, at: Any, values: Any) -> Tensor:
    target[at] = values
    return target


TOO_LARGE: dict[str, Use] = {
    "masked_fill": lambda i: i["h"].masked_fill(i["mask"], -LARGE),
    "masked_fill_": lambda i: i["h"].masked_fill_(i["mask"], -LARGE),
    "masked_fill of a tensor": lambda i: i["h"].masked_fill(i["mask"], i["x"].sum() * LARGE),
    "masked_fill in bfloat16": lambda i: i["b"].masked_fill(i["mask"], LOWEST),
    "fill_": lambda i: i["h"].fill_(LARGE),
    "fill_diagonal_": lambda i: i["h"].fill_diagonal_(LARGE),
    "full_like": lambda i: torch.full_like(i["h"], LARGE),
    "full": lambda i: torch.full((2,), LARGE, dtype=torch.float16, device=i["h"].device),
    "new_full": lambda i: i["h"].new_full((2,), LARGE),
    "pad": lambda i: F.pad(i["h"], (0, 1), value=-LARGE),
    "index_fill": lambda i: i["h"].index_fill(0, i["at"], -LARGE),
    "scatter": lambda i: i["h"].scatter(0, i["where"], -LARGE),
    "threshold": lambda i: F.threshold(i["h"], 0.5, -LARGE),
    "hardshrink": lambda i: F.hardshrink(i["h"], LARGE),
    "pow": lambda i: i["h"].pow(LARGE),
    "uniform_": lambda i: i["h"].uniform_(-LARGE, LARGE),
    "random_": lambda i: i["h"].random_(0, 100_000),
    "linspace": lambda i: torch.linspace(0.0, LARGE, 3, dtype=torch.float16, device=i["h"].device),
    "index_add": lambda i: i["h"].index_add(0, i["at"], i["h"][:2], alpha=LARGE),
}
TWO_DTYPES: dict[str, Use] = {
    "mask as index": lambda i: put(i["h"], i["mask"], i["x"][i["mask"]]),
    "low into float32": lambda i: put(i["x"], i["mask"], i["h"][i["mask"]]),
    "index": lambda i: put(i["h"], i["at"], i["x"][:2]),
    "masked_scatter": lambda i: i["h"].masked_scatter(i["mask"], i["x"]),
    "put_": lambda i: i["h"].put_(i["at"], i["x"][0, :2]),
    "index_copy": lambda i: i["h"].index_copy(0, i["at"], i["x"][:2]),
    "index_reduce": lambda i: i["h"].index_reduce(0, i["at"], i["x"][:2], "mean"),
    "scatter_reduce": lambda i: i["h"].scatter_reduce(0, i["where"], i["x"], "sum"),
    "grid_sample": lambda i: F.grid_sample(
        i["h"][None, None], i["x"][None, :, :2, None].mT, align_corners=False
    ),
    "embedding_bag": lambda i: F.embedding_bag(
        i["where"], i["h"], per_sample_weights=i["x"][:2], mode="sum"
    ),
    "binary_cross_entropy": lambda i: F.binary_cross_entropy(i["h"], i["x"]),
    "cross_entropy": lambda i: F.cross_entropy(i["h"][:2], i["at"], weight=i["x"][0]),
    "prelu": lambda i: F.prelu(i["h"], i["x"][0, :1]),
    "cross": lambda i: torch.linalg.cross(i["h"][:, :3], i["x"][:, :3]),
    "complex": lambda i: torch.complex(i["h"], i["x"]),
    "heaviside": lambda i: torch.heaviside(i["h"], i["x"]),
    "addmv": lambda i: torch.addmv(i["h"][:, 0], i["h"], i["x"][0]),
    "einsum": lambda i: torch.einsum("ij,kj->ik", i["h"], i["x"]),
    "conv1d": lambda i: F.conv1d(i["h"][None], i["x"][None, :, :2]),
    "float16 and bfloat16": lambda i: i["h"].masked_scatter(i["mask"], i["b"]),
}


@pytest.mark.parametrize(
    "use", [*TOO_LARGE.values(), *TWO_DTYPES.values()], ids=[*TOO_LARGE, *TWO_DTYPES]
)
def test_what_torch_refuses_on_the_cpu_is_refused_in_the_same_words(use: Use) -> None:
    with pytest.raises(RuntimeError) as expected:
        use(inputs("cpu"))
    given = inputs("cuda")
    with pytest.raises(RuntimeError) as raised:
        use(given)
    assert str(raised.value).splitlines()[0] == str(expected.value).splitlines()[0]
    kept = inputs("cpu")
    assert all(torch.equal(given[name].cpu(), kept[name]) for name in kept)


def attended(i: Inputs) -> Tensor:
    q = i["h"][None, None]
    return F.scaled_dot_product_attention(q, q, q, attn_mask=i["x"][None, None, :, :3].contiguous())


REFUSED_BY_CUDA_ALONE: dict[str, Use] = {
    "layer_norm": lambda i: F.layer_norm(i["h"], (4,), i["x"][0], i["x"][0]),
    "group_norm": lambda i: F.group_norm(i["h"], 2, i["x"][0], i["x"][0]),
    "attention's mask": attended,
    "multi_margin_loss": lambda i: F.multi_margin_loss(i["h"][:2], i["at"], weight=i["x"][0]),
}


@pytest.mark.parametrize("use", REFUSED_BY_CUDA_ALONE.values(), ids=REFUSED_BY_CUDA_ALONE)
def test_what_only_cuda_refuses(use: Use) -> None:
    with pytest.raises(RuntimeError, match=r"same dtype|match query's dtype"):
        use(inputs("cuda"))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("multiply", [torch.mm, torch.sparse.mm, lambda a, b: torch.mv(a, b[0])])
def test_cusparse_multiplies_no_dense_matrix_in_16_bits(multiply: Any) -> None:
    low = torch.eye(3, device="cuda", dtype=torch.float16)
    with pytest.raises(NotImplementedError, match=r"not implemented for 'Half'"):
        multiply(low.to_sparse(), low)
    both = torch.sparse.mm(low.to_sparse(), low.to_sparse())
    assert torch.equal(both.to_dense(), low)


PASSES: dict[str, Use] = {
    "clamp": lambda i: i["h"].clamp(-LARGE, LARGE),
    "clamp_": lambda i: i["h"].clamp_(min=-LARGE),
    "hardtanh": lambda i: F.hardtanh(i["h"], -LARGE, LARGE),
    "foreach": lambda i: torch._foreach_clamp_max([i["h"]], LARGE)[0],
}


@pytest.mark.parametrize("use", PASSES.values(), ids=PASSES)
def test_cudas_kernels_read_the_ends_of_a_range_in_float32(use: Use) -> None:
    assert torch.equal(use(inputs("cuda")).cpu(), inputs("cpu")["h"])


def test_what_is_infinite_or_rounds_to_it_is_not_refused() -> None:
    i = inputs("cuda")
    above = int(i["mask"].sum())
    for result, infinite in (
        (i["h"].masked_fill(i["mask"], float("-inf")), above),
        (torch.where(i["mask"], -LARGE, i["h"]), above),
        (put(i["h"].clone(), i["mask"], -LARGE), above),
        (i["h"] - LARGE, i["h"].numel()),
        (i["h"].nan_to_num(neginf=-LARGE), 0),
    ):
        assert int(result.isneginf().sum()) == infinite


def test_what_promotes_is_computed() -> None:
    i = inputs("cuda")
    assert torch.equal(i["h"] * i["x"], i["h"].float() * i["x"])
    assert nn.BatchNorm1d(4, device="cuda")(i["h"]).dtype is torch.float16
    low = i["h"].clone().requires_grad_()
    low.softmax(-1, dtype=torch.float32)[:, 0].sum().backward()
    assert low.grad is not None
    assert low.grad.dtype is torch.float16


def test_a_call_that_is_tried_first_draws_once() -> None:
    torch.manual_seed(3)
    expected = torch.empty(5).normal_(), torch.empty(5).normal_()
    torch.manual_seed(3)
    low = torch.empty(5, device="cuda", dtype=torch.float16).normal_(0.0, 1e5)
    assert torch.equal(low.isinf().cpu(), (expected[0] * 1e5).half().isinf())
    assert torch.equal(torch.empty(5, device="cuda").normal_().cpu(), expected[1])


# -- every op that torch has samples of

OF_CUDA = frozenset(
    {
        # statistics, buffers and results in dtypes of CUDA's own
        *("native_batch_norm", "native_batch_norm_backward"),
        *("native_layer_norm_backward", "native_group_norm_backward", "log_sigmoid_backward"),
        *(
            "_softmax_backward_data",
            "_log_softmax_backward_data",
            "_weight_norm_interface_backward",
        ),
        # numbers that CUDA's kernels read in float32
        *("add", "add_", "sub", "sub_", "rsub"),
        *("clamp_", "clamp_min", "clamp_min_", "hardtanh", "logit", "logit_backward"),
        # a bias in another dtype, which transposed convolutions of the CPU take
        "convolution",
    }
)
"""Kernels that refuse what the CPU's take, or take what they refuse."""


class Kernels(TorchDispatchMode):
    """Keeps the arguments of two calls of each op that float16 goes into."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: dict[Any, list[dict[str, Any]]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kept = self.calls.setdefault(func, [])
        given = {a.name: a.default_value for a in func._schema.arguments}
        given |= dict(zip(given, args, strict=False)) | (kwargs or {})
        if len(kept) < 2 and any(map(is_low, tree_leaves(given))):
            kept.append(copied(given, "cpu"))
        return func(*args, **kwargs or {})


def is_low(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype is torch.float16


def copied(given: dict[str, Any], device: str) -> Any:
    def copy(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.detach().to(device, copy=True)
        return torch.device(device) if isinstance(value, torch.device) else value

    return tree_map(copy, given)


def sampled() -> Kernels:
    """The kernels of torch's samples in float16, forward and backward."""
    kernels = Kernels()
    for call in op_cases.calls():
        args, kwargs = call.on("cpu", torch.float16)
        try:
            with kernels:
                for output in tree_leaves(call.run(*args, **kwargs)):
                    if is_low(output) and output.requires_grad:
                        output.float().sum().backward(retain_graph=True)
        except (RuntimeError, TypeError, ValueError, AttributeError):
            continue  # nothing in 16 bits
    return kernels


NUMBERS = ("number", "float", "Optional[number]", "Optional[float]")


def varied(func: Any, given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The call with one of its tensors in the other dtype, or one of its numbers too large."""
    for argument in func._schema.arguments:
        value = given[argument.name]
        if isinstance(value, Tensor) and value.is_floating_point():
            yield given | {argument.name: value.float() if is_low(value) else value.half()}
        elif str(argument.type) in NUMBERS:
            yield given | {argument.name: LARGE}


def is_refused(func: Any, given: dict[str, Any], device: str) -> bool | None:
    """None where there is no kernel. What oneDNN's kernels take depends on the CPU: they are left out."""
    try:
        with torch.backends.mkldnn.flags(enabled=False):
            func(**copied(given, device))
    except NotImplementedError:
        return None
    except (RuntimeError, ValueError):
        return True
    return False


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_each_kernel_refuses_what_the_cpus_refuses() -> None:
    calls = [
        (func, changed)
        for func, kept in sampled().calls.items()
        for given in kept
        for changed in varied(func, given)
    ]
    assert len(calls) > 1000
    differing = set()
    for func, given in calls:
        on_cpu, there = (is_refused(func, given, device) for device in ("cpu", "cuda"))
        if None not in (on_cpu, there) and on_cpu != there:
            differing.add(func._schema.name.removeprefix("aten::"))
    assert {name for name in differing if "for_cpu" not in name} == OF_CUDA
