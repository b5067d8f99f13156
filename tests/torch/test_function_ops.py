"""Python functions that policies allow or deny: a package's, by their paths, and registered ones."""

from __future__ import annotations

import pytest
import their_layers
import torch
from their_layers import fused_projection

import ampbridge as amp
from ampbridge import Policy, lens


@amp.register_op
def registered(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.exp(torch.matmul(x, weight))


CALLS = {
    "their_layers:fused_projection": lambda x, w: fused_projection(x, w),
    "their_layers:flash_product": lambda x, w: their_layers.flash_product(x, w),
    "their_layers:FlashProduct.apply": lambda x, w: their_layers.flash_product(x, w),
    f"{__name__}:registered": registered,
}
DTYPES = {"allow": torch.bfloat16, "deny": torch.float32}

every_execution = pytest.mark.parametrize("execution", ["native", "simulated"])
every_function = pytest.mark.parametrize("name", CALLS)
every_rule = pytest.mark.parametrize("rule", ["allow", "deny"])


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    their_layers.PRODUCTS.clear()


def policy(rule: str, name: str, execution: str = "native") -> Policy:
    return Policy("O1", "bfloat16", execution=execution, **{rule: [name]})


def reference(name: str, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    product = x.float() @ w.float()
    return product if "lash" in name else product.exp()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo's own, both
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@every_execution
@every_function
@every_rule
def test_it_runs_as_a_whole_forward_and_backward(rule, name, execution, compiled):
    given = torch.float32 if rule == "allow" else torch.bfloat16
    x = (0.3 * torch.randn(4, 8)).to(given).requires_grad_()
    w = (0.3 * torch.randn(8, 8)).to(given).requires_grad_()
    call = torch.compile(CALLS[name], backend="aot_eager") if compiled else CALLS[name]
    chosen = policy(rule, name, execution)
    settings = torch._inductor.config.patch(emulate_precision_casts=True)
    if compiled and name.endswith(".apply"):
        said = pytest.raises(
            Exception, match=r"apply of a torch\.autograd\.Function, which torch\.compile"
        )
        with settings, said, amp.autocast(chosen, "torch"):
            call(x + 1, w)
        return
    with settings, amp.autocast(chosen, "torch"):
        y = call(x, w)
    assert y.dtype is DTYPES[rule]
    exact = reference(name, x.bfloat16(), w.bfloat16())
    tolerance = 2**-6 if rule == "allow" else 2**-20
    torch.testing.assert_close(y.float(), exact, rtol=tolerance, atol=tolerance)
    y.float().sum().backward()
    assert (x.grad.dtype, w.grad.dtype) == (given, given)
    a, b = (t.detach().float().requires_grad_() for t in (x.bfloat16(), w.bfloat16()))
    reference(name, a, b).sum().backward()
    torch.testing.assert_close(x.grad.float(), a.grad, rtol=2**-5, atol=2**-5)
    torch.testing.assert_close(w.grad.float(), b.grad, rtol=2**-5, atol=2**-5)


def test_inside_nothing_is_cast():
    x, w = torch.randn(4, 8), torch.randn(8, 8)
    for chosen in (
        policy("allow", "their_layers:fused_projection"),
        policy("deny", "their_layers:fused_projection"),
        Policy("O1", "bfloat16", execution="native"),
    ):
        with amp.autocast(chosen, "torch"):
            fused_projection(x, w)
    assert [torch.bfloat16, torch.float32, torch.bfloat16] == their_layers.PRODUCTS
    with amp.autocast(policy("allow", "their_layers:fused_projection", "simulated"), "torch"):
        fused_projection(x, w)
    assert their_layers.PRODUCTS[-1] is torch.float32  # on rounded values


@every_function
@every_rule
def test_the_census_shows_it_as_one_op(name, rule):
    model = their_layers.Projection(CALLS[name])
    chosen = policy(rule, name, "simulated")
    census = lens.census(
        lambda model, x: model(x).float().mean(), model, torch.ones(2, 8), policy=chosen
    )
    (row, mean) = census.rows
    dtype = str(DTYPES[rule]).removeprefix("torch.")
    assert (row.op, row.dtype, row.rule, row.calls) == (name, dtype, f"your {rule}", 1)
    assert mean.op == "mean"


def test_the_lens_shows_it_whole_in_float32_as_well():
    model = their_layers.Projection(lambda x, w: fused_projection(x, w))
    with torch.no_grad():
        model.weight.copy_(torch.eye(8))
    allowed = Policy("O1", allow=["their_layers:fused_projection"], execution="simulated")
    found = lens.locate(
        lambda m, x: m(x).float().log().mean(), model, torch.full((2, 8), 12.0), policy=allowed
    )
    assert found.op == "their_layers:fused_projection"  # exp(12) is beyond float16


@pytest.mark.parametrize("compile", [False, True])
@every_rule
@pytest.mark.slow
def test_a_step_trains_through_it(compile, rule):
    name = f"{__name__}:registered"
    model = their_layers.Projection(registered)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def loss_fn(model, x):
        return torch.nn.functional.mse_loss(model(x).float(), torch.full((4, 8), 2.0))

    step = amp.train_step(
        loss_fn, model, optimizer, policy=policy(rule, name, "simulated"), compile=compile
    )
    x = torch.randn(4, 8)
    losses = [float(step(x).loss) for _ in range(10)]
    assert losses[-1] < losses[0]


def test_a_compiled_function_follows_the_policy_of_each_call():
    call = torch.compile(lambda x, w: registered(x, w) * 1, backend="aot_eager", fullgraph=True)
    x, w = torch.randn(4, 8), torch.randn(8, 8)
    dtypes = []
    for rule in ("allow", "deny", "allow"):
        with amp.autocast(policy(rule, f"{__name__}:registered"), "torch"):
            dtypes.append(call(x, w).dtype)
    assert dtypes == [torch.bfloat16, torch.float32, torch.bfloat16]
    assert call(x, w).dtype is torch.float32


def test_a_region_inside_of_compiled_code_knows_registered_functions_alone():
    def called(x, w, chosen):
        with amp.autocast(chosen, "torch"):
            return registered(x, w), fused_projection(x, w)

    x, w = torch.randn(4, 8), torch.randn(8, 8)
    compiled = torch.compile(called, backend="aot_eager", fullgraph=True)
    low, _ = compiled(x, w, policy("allow", f"{__name__}:registered"))
    assert low.dtype is torch.bfloat16
    with pytest.raises(Exception, match="The policy names a function by its path"):
        compiled(x, w, policy("allow", "their_layers:fused_projection"))


def test_recomputation_runs_it_by_the_same_rule():
    from torch.utils.checkpoint import checkpoint

    x, w = torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)
    with amp.autocast(policy("deny", "their_layers:fused_projection"), "torch"):
        y = checkpoint(lambda x, w: fused_projection(x, w), x, w, use_reentrant=False)
    y.sum().backward()
    assert [torch.float32, torch.float32] == their_layers.PRODUCTS


def test_without_a_rule_nothing_of_it_is_seen():
    with amp.autocast("O1:bfloat16", "torch"):
        assert registered(torch.ones(2, 8), torch.ones(8, 8)).dtype is torch.float32  # exp's


def test_it_is_refused_where_the_framework_decides():
    with pytest.raises(amp.PolicyError, match="lists='native' intercepts nothing"):
        Policy(lists="native", deny=["their_layers:fused_projection"])
