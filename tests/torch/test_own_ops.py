"""Ops that the op table lacks: a library's own, one of torch's, Python functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ampbridge as amp
from ampbridge import Policy, PolicyError, UnsupportedError, lens

SEEN: list[torch.dtype] = []
"""What the op was handed, forward and backward."""


# As in PyTorch's tutorial "Custom Python Operators": numpy_sin, of a library of its own.
@torch.library.custom_op("ampbridge_tests::numpy_sin", mutates_args=())
def numpy_sin(x: torch.Tensor) -> torch.Tensor:
    SEEN.append(x.dtype)
    return torch.from_numpy(np.sin(x.detach().float().numpy())).to(x.dtype)


@numpy_sin.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def setup_context(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    (x,) = ctx.saved_tensors
    SEEN.append(grad.dtype)
    return grad * x.cos()


numpy_sin.register_autograd(backward, setup_context=setup_context)

NAME = "torch:ampbridge_tests::numpy_sin"

CALLS = {
    "the decorated function": numpy_sin,
    "torch.ops": lambda x: torch.ops.ampbridge_tests.numpy_sin(x),
    "an overload": lambda x: torch.ops.ampbridge_tests.numpy_sin.default(x),
}


@pytest.fixture(autouse=True)
def nothing_seen():
    SEEN.clear()
    torch._dynamo.reset()


def policy(rule: str, execution: str) -> Policy:
    return Policy("O1", "bfloat16", execution=execution, **{rule: [NAME]})


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("execution", ["native", "simulated"])
def test_an_allowed_one_runs_low_forward_and_backward(call, execution, compiled):
    x = torch.linspace(0.1, 2, 64, requires_grad=True)
    y = run(CALLS[call], x, policy("allow", execution), compiled)
    rounded = x.detach().bfloat16()
    expected = torch.from_numpy(np.sin(rounded.float().numpy())).bfloat16()
    assert y.dtype is torch.bfloat16
    assert torch.equal(y, expected)
    y.sum().backward()
    kernel = torch.bfloat16 if execution == "native" else torch.float32
    assert set(SEEN) == {kernel}
    cosine = rounded.to(kernel).cos().bfloat16().float()
    torch.testing.assert_close(x.grad, cosine, rtol=0, atol=2**-8)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("execution", ["native", "simulated"])
def test_a_denied_one_runs_in_float32_forward_and_backward(call, execution, compiled):
    x = torch.linspace(0.1, 2, 64, dtype=torch.bfloat16, requires_grad=True)
    y = run(CALLS[call], x, policy("deny", execution), compiled)
    assert torch.equal(y, torch.from_numpy(np.sin(x.detach().float().numpy())))
    y.sum().backward()
    assert set(SEEN) == {torch.float32}
    assert torch.equal(x.grad, x.detach().float().cos().bfloat16())


def run(call, x, policy, compiled):
    def called(x):
        return call(x) * 1

    if compiled:
        called = torch.compile(called, backend="aot_eager", fullgraph=True)
    with torch._inductor.config.patch(emulate_precision_casts=True), amp.autocast(policy, "torch"):
        return called(x)


def test_a_compiled_function_follows_the_policy_of_each_call():
    called = torch.compile(lambda x: numpy_sin(x) * 1, backend="aot_eager", fullgraph=True)
    x = torch.ones(3)
    dtypes = []
    for each in (policy("allow", "native"), policy("deny", "native"), policy("allow", "native")):
        with amp.autocast(each, "torch"):
            dtypes.append(called(x).dtype)
    assert dtypes == [torch.bfloat16, torch.float32, torch.bfloat16]


def test_unlisted_it_takes_what_arrives():
    with amp.autocast("O1:bfloat16", "torch"):
        assert numpy_sin(torch.ones(3)).dtype is torch.float32
        assert numpy_sin(torch.ones(3, dtype=torch.bfloat16)).dtype is torch.bfloat16


@pytest.mark.parametrize(("rule", "dtype"), [("allow", "bfloat16"), ("deny", "float32")])
def test_it_is_explained_and_shows_in_the_census(rule, dtype):
    chosen = policy(rule, "simulated")
    row = amp.explain(chosen, "torch").op(NAME)
    assert (row.category, row.dtype) == (rule, dtype)
    model = nn.Sequential(nn.Linear(4, 4))
    census = lens.census(
        lambda model, x: numpy_sin(model(x)).float().mean(), model, torch.ones(2, 4), policy=chosen
    )
    (row,) = [row for row in census.rows if row.op == NAME]
    assert (row.dtype, row.rule, row.calls) == (dtype, f"your {rule}", 1)


def test_a_step_trains_through_it():
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_fn(model, x, y):
        return torch.nn.functional.mse_loss(numpy_sin(model(x)).float(), y)

    step = amp.train_step(loss_fn, model, optimizer, policy=policy("allow", "simulated"))
    x, y = torch.randn(16, 8), torch.zeros(16, 1)
    losses = [float(step(x, y).loss) for _ in range(20)]
    assert losses[-1] < losses[0] / 2
    assert set(SEEN) == {torch.float32}  # simulated: float32 kernels on rounded values


@pytest.mark.parametrize(("rule", "dtype"), [("allow", torch.bfloat16), ("deny", torch.float32)])
@pytest.mark.parametrize("execution", ["native", "simulated"])
def test_a_private_product_of_torch_s_own(rule, dtype, execution):
    name = "torch:aten::_grouped_mm"
    chosen = Policy("O1", "bfloat16", execution=execution, **{rule: [name]})
    given = torch.float32 if rule == "allow" else torch.bfloat16
    x = torch.randn(8, 16, dtype=given, requires_grad=True)
    weights = torch.randn(2, 16, 16, dtype=given, requires_grad=True)
    ends = torch.tensor([4, 8], dtype=torch.int32)
    with amp.autocast(chosen, "torch"):
        y = torch._grouped_mm(x, weights, offs=ends)
    assert y.dtype is dtype
    low = x.detach().bfloat16(), weights.detach().bfloat16()
    halves = [a.float() @ b.float() for a, b in zip(low[0].split(4), low[1], strict=True)]
    torch.testing.assert_close(y.float(), torch.cat(halves), rtol=2**-7, atol=2**-5)
    y.backward(torch.ones_like(y))
    assert (x.grad.dtype, weights.grad.dtype) == (given, given)
    assert amp.explain(chosen, "torch").op(name).dtype == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("torch:ampbridge_tests::numpy_sim", NAME),
        ("torch:sofmax", "torch:softmax"),
        ("torch:nn.functional.nothing", "Hint: "),
    ],
)
def test_what_torch_does_not_have(name, hint):
    with pytest.raises(PolicyError, match=f"Unknown op '{name}': torch") as caught:
        amp.autocast(Policy(deny=[name]), "torch").__enter__()
    assert hint in str(caught.value).splitlines()[-1]


def test_an_op_that_writes_to_its_arguments():
    with pytest.raises(UnsupportedError, match="torch:add_ writes to its arguments"):
        amp.explain(Policy(deny=["torch:aten::add_"]), "torch")


def test_other_frameworks_ops_are_absent():
    with pytest.warns(amp.AmpBridgeWarning, match="no effect on torch"):
        table = amp.explain(Policy(deny=["tf:Betainc"]), "torch")
    assert table.op("tf:Betainc").by == "absent"
