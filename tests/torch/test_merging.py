"""Ops that merge tensors of two dtypes: what torch refuses, a region promotes.

The references are the same op on the same values, all in float32, and torch's own database of ops.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

import ampbridge as amp
from ampbridge_torch import _private
from ampbridge_torch.autocast import merging

pytestmark = pytest.mark.filterwarnings("ignore:.*in beta")

Merge = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

ROWS = torch.tensor([2, 0, 2])
PLACES = torch.tensor([[2, 0, 1, 1], [0, 1, 0, 2], [3, 3, 3, 0]])
MASK = torch.tensor([[True], [False], [True], [True], [False]])

NEW: dict[str, Merge] = {
    "masked_scatter": lambda x, v: x.masked_scatter(MASK, v),
    "index_add": lambda x, v: torch.index_add(x, 0, ROWS, v),
    "index_reduce": lambda x, v: x.index_reduce(0, ROWS, v, "amax"),
    "index_copy": lambda x, v: x.index_copy(0, ROWS, v),
    "index_put": lambda x, v: x.index_put((ROWS,), v, accumulate=True),
    "put": lambda x, v: x.put(PLACES, v, accumulate=True),
    "scatter": lambda x, v: x.scatter(0, PLACES, v),
    "scatter_add": lambda x, v: x.scatter_add(0, PLACES, v),
    "scatter_reduce": lambda x, v: x.scatter_reduce(0, PLACES, v, "sum"),
    "lerp": lambda x, v: torch.lerp(x[:3], v, 0.25),
    "lerp weight": lambda x, v: torch.lerp(x[:3], x[1:4], v),
    "meshgrid": lambda x, v: torch.meshgrid(x[0], v[0], indexing="ij")[1],
    "solve": lambda x, v: torch.linalg.solve_ex(x[:4, :4], v.T)[0],
}

IN_PLACE: dict[str, Merge] = {
    "masked_scatter_": lambda x, v: x.masked_scatter_(MASK, v),
    "index_add_": lambda x, v: x.index_add_(0, ROWS, v, alpha=2),
    "index_reduce_": lambda x, v: x.index_reduce_(0, ROWS, v, "mean"),
    "index_copy_": lambda x, v: x.index_copy_(0, ROWS[:2], v[:2]),
    "index_put_": lambda x, v: x.index_put_((ROWS,), v, accumulate=True),
    "put_": lambda x, v: x.put_(PLACES[:, :2], v[:, :2], accumulate=True),
    "scatter_": lambda x, v: x.scatter_(0, PLACES[:1], v),
    "scatter_add_": lambda x, v: x.scatter_add_(0, PLACES, v),
    "scatter_reduce_": lambda x, v: x.scatter_reduce_(0, PLACES, v, "prod"),
    "lerp_": lambda x, v: x[:3].lerp_(v, 0.25),
    "addmm_": lambda x, v: x[:3].addmm_(v, x[:4, :4]),
    "x[mask] =": lambda x, v: assigned(x, MASK[:, 0], v),
    "x[rows] =": lambda x, v: assigned(x, ROWS[:2], v[:2]),
    "x[...] =": lambda x, v: assigned(x, slice(0, 3), v),
}


def assigned(x: torch.Tensor, where: Any, values: torch.Tensor) -> torch.Tensor:
    x[where] = values
    return x


def arguments(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(5, 4), torch.randn(3, 4).to(dtype)


@pytest.fixture(params=["O1", "O2"])
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["native", "simulated"])
def policy(request: pytest.FixtureRequest, level: str, low: str) -> amp.Policy:
    return amp.Policy(level, low, execution=request.param)


@pytest.mark.parametrize("name", NEW)
def test_the_result_is_the_wider_one(name: str, policy: amp.Policy) -> None:
    x, v = arguments(getattr(torch, policy.dtype))
    leaf = v.clone().requires_grad_()
    with amp.autocast(policy, backend="torch"):
        found = NEW[name](x, leaf)
    assert found.dtype is torch.float32
    wide = v.float().requires_grad_()
    expected = NEW[name](x, wide)
    assert float((found - expected).detach().norm() / expected.detach().norm()) < 1e-6
    expected.square().sum().backward()
    found.square().sum().backward()
    assert leaf.grad is not None
    assert wide.grad is not None
    assert leaf.grad.dtype is v.dtype
    assert float((leaf.grad - wide.grad).norm() / wide.grad.norm()) < 2e-2


@pytest.mark.parametrize("name", IN_PLACE)
def test_what_is_written_to_keeps_its_dtype(name: str, policy: amp.Policy) -> None:
    low = getattr(torch, policy.dtype)
    x, v = arguments(low)
    expected = IN_PLACE[name](x.clone(), v.float())
    with amp.autocast(policy, backend="torch"):
        found = IN_PLACE[name](x, v)
        assert found.data_ptr() == x.data_ptr()
        assert torch.equal(found, expected)
        into = arguments(low)[0].to(low)
        written = IN_PLACE[name](into, v.float())
    assert written.data_ptr() == into.data_ptr()
    assert written.dtype is low
    assert torch.equal(written, IN_PLACE[name](arguments(low)[0].to(low), v))


def test_it_ends_with_the_region(low: str) -> None:
    x, v = arguments(getattr(torch, low))
    with amp.autocast(amp.Policy("O1", low), backend="torch"):
        with amp.autocast(amp.Policy("O1", low), backend="torch"):
            pass
        assert NEW["index_add"](x, v).dtype is torch.float32
        with torch.autocast("cpu", enabled=False), pytest.raises(RuntimeError, match="scalar type"):
            NEW["index_add"](x, v)
    with torch.autocast("cpu", getattr(torch, low)):
        with pytest.raises(RuntimeError, match="scalar type"):
            NEW["index_add"](x, v)
        assert torch.equal(NEW["index_add"](x, v.float()), x.index_add(0, ROWS, v.float()))
    native = amp.Policy("O1", low, lists="native")
    with amp.autocast(native, backend="torch"), pytest.raises(RuntimeError, match="scalar type"):
        NEW["index_add"](x, v)


def test_the_kernels_are_not_taken_for_torchs_own() -> None:
    """What ``torch.autocast`` casts by itself is not simulated; these ops it does not."""
    with amp.autocast("O1:bfloat16", backend="torch"):
        pass
    assert "index_add_" not in (_private.registered_for_autocast("cpu") or ())


def test_in_a_compiled_function(low: str) -> None:
    x, v = arguments(getattr(torch, low))
    merge = torch.compile(
        lambda x, v: NEW["index_add"](x, v) + IN_PLACE["x[mask] ="](x.clone(), v),
        fullgraph=True,
        backend="aot_eager",
    )
    with amp.autocast(amp.Policy("O1", low, execution="native"), backend="torch"):
        found = merge(x, v)
    wide = v.float()
    assert torch.equal(found, NEW["index_add"](x, wide) + IN_PLACE["x[mask] ="](x.clone(), wide))


def test_a_model_that_merges_what_two_parts_made(policy: amp.Policy) -> None:
    """Embeddings in float32 and an encoder's results, as in multimodal models."""
    torch.manual_seed(0)
    table, encoder, head = nn.Embedding(9, 4), nn.Linear(6, 4), nn.Linear(4, 2)
    model = nn.ModuleList([table, encoder, head])
    words, seen = torch.tensor([[1, 8, 8, 2], [8, 3, 8, 5]]), torch.randn(4, 6)

    def loss_fn(model: Any, words: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        merged = table(words).masked_scatter((words == 8)[..., None], encoder(seen))
        return head(merged).float().square().mean()

    _, expected = amp.value_and_grad(loss_fn, model, words, seen, policy="O0")
    amp.decorate(model, None, policy)
    _, grads = amp.value_and_grad(loss_fn, model, words, seen, policy=policy)
    for found, exact in zip(grads, expected, strict=True):
        assert float((found - exact).norm() / exact.norm()) < 3e-2


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes are since Python 3.11")
@pytest.mark.parametrize("lists", ["torch", "native"])
def test_what_torch_still_refuses_comes_with_a_hint(low: str, lists: Any) -> None:
    norm, x = nn.BatchNorm1d(3).to(getattr(torch, low)), torch.randn(4, 3)
    region = amp.autocast(amp.Policy("O1", low, execution="native", lists=lists), backend="torch")
    with pytest.raises(RuntimeError, match=r"dtype|scalar type") as caught, region:
        norm(x)
    assert caught.value.__notes__ == [
        "Hint: Policy(..., deny=['torch:OP']) runs the op that raised in float32, and keep=['LAYER'] the "
        "layer that called it; allow=['module:Class.apply'] casts what a torch.autograd.Function is "
        "handed."
    ]


# What is left to torch: norms, whose weights O2 keeps wide; gradients that are ops; ops for which
# it has no low kernel.
LEFT = {
    *("_batch_norm_with_update", "_native_batch_norm_legit", "native_batch_norm"),
    *("nn.functional.batch_norm", "nn.functional.instance_norm", "_softmax_backward_data"),
    *("histogram", "histogramdd", "linalg.pinv", "linalg.solve_triangular"),
    "nn.functional.linear_cross_entropy",
}


def mixtures(op: Any, low: torch.dtype) -> Iterator[tuple[Callable[..., Any], Any, Any]]:
    """Each form of an op, with arguments that run in float32 and the same with one or all but one low."""
    forms = [form for form in (op.op, op.method_variant, op.inplace_variant) if form is not None]
    for sample in islice(op.sample_inputs("cpu", torch.float32, requires_grad=False), 3):
        flat, spec = tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
        wide = {i for i, x in enumerate(flat) if getattr(x, "dtype", None) is torch.float32}
        chosen = [{i} for i in wide] + [wide - {i} for i in wide]
        for lowered in chosen if len(wide) > 1 else ():
            mixed = [x.to(low) if i in lowered else x for i, x in enumerate(flat)]
            for form in forms:
                yield form, tree_unflatten(list(flat), spec), tree_unflatten(mixed, spec)


def copied(arguments: Any) -> Any:
    flat, spec = tree_flatten(arguments)
    return tree_unflatten([x.clone() if isinstance(x, torch.Tensor) else x for x in flat], spec)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_no_op_of_torchs_database_refuses_two_dtypes(low: str) -> None:
    from torch.testing._internal.common_methods_invocations import op_db

    policy = amp.Policy("O1", low, execution="native")
    refused = set()
    for op in op_db:
        if op.name.startswith(
            ("_refs", "ops.", "_foreach")
        ) or torch.float32 not in op.supported_dtypes("cpu"):
            continue
        for form, plain, mixed in mixtures(op, getattr(torch, low)):
            try:
                first, args, kwargs = copied(plain)
                form(first, *args, **kwargs)
            except Exception:
                continue  # in float32 neither
            first, args, kwargs = copied(mixed)
            try:
                with amp.autocast(policy, backend="torch"):
                    form(first, *args, **kwargs)
            except RuntimeError as error:
                if "not implemented for" not in str(error):
                    refused.add(f"{op.name}: {error}")
    assert {name for name in refused if name.partition(":")[0] not in LEFT} == set()


def test_first_regions_of_several_threads_register_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else torch warns of a kernel in the place of another."""
    calls, start = [], threading.Barrier(4)

    def register(device_type: str) -> None:
        for _ in range(3_000_000):  # long enough for the other threads to come
            pass
        calls.append(device_type)

    def first_region(_: int) -> None:
        start.wait()
        merging.register(("cpu",))

    monkeypatch.setattr(merging, "registered", set())
    monkeypatch.setattr(merging, "_register", register)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(first_region, range(4)))
    assert calls == ["cpu"]
