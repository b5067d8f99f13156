"""``Policy(float32=...)``: torch's own settings, read where kernels run, and TF32 rehearsed on a CPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ampbridge as amp
from ampbridge.adapters.process_setting import Float32Setting
from ampbridge_torch import _private
from ampbridge_torch.autocast import float32
from ampbridge_torch.fit.loop_precision import LoopPrecision

BACKENDS = torch.backends
NEW = (
    *(BACKENDS, BACKENDS.cuda.matmul, BACKENDS.cudnn, BACKENDS.cudnn.conv, BACKENDS.cudnn.rnn),
    *(BACKENDS.mkldnn.matmul, BACKENDS.mkldnn.conv, BACKENDS.mkldnn.rnn),
)
HAS_NEW = hasattr(BACKENDS, "fp32_precision")
needs_new = pytest.mark.skipif(not HAS_NEW, reason="before torch 2.9")


def settings() -> list[str]:
    """What torch says of each setting: new ones, or old ones where there are no others."""
    if HAS_NEW:
        return [each.fp32_precision for each in NEW]
    old = BACKENDS.cuda.matmul.allow_tf32, BACKENDS.cudnn.allow_tf32
    return ["tf32" if each else "ieee" for each in old]


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    """What a test has set by torch's own functions is as at first, but that convolutions do not inherit.

    Modules of torch's own tests, which others of ours import, forbid such settings.
    """
    with BACKENDS.__allow_nonbracketed_mutation():
        yield
        torch.set_float32_matmul_precision("highest")
        for each in NEW if HAS_NEW else ():
            if each not in (BACKENDS.cudnn.conv, BACKENDS.cudnn.rnn):
                each.fp32_precision = "none"
        if HAS_NEW and BACKENDS.cudnn.conv.fp32_precision != "tf32":
            BACKENDS.cudnn.allow_tf32 = True


class Seen(torch.autograd.Function):
    """Notes the settings in a forward pass and in a backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seen: dict[str, list[str]]) -> Tensor:
        ctx.seen = seen
        seen["forward"] = settings()
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.seen["backward"] = settings()
        return gradient, None


def trained(policy: amp.Policy | amp.Schedule, **arguments: Any) -> tuple[Any, dict[str, Any]]:
    """A step, and what its forward pass, backward pass and update see."""
    model, seen = nn.Linear(4, 2), dict[str, Any]()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.register_step_pre_hook(lambda *_: seen.update(update=settings()))

    def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
        return Seen.apply(model(x), seen).square().mean()  # type: ignore[no-untyped-call, no-any-return]

    return amp.train_step(loss_fn, model, optimizer, policy=policy, **arguments), seen


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("level", ["O0", "O1"])
def test_a_step_holds_it_from_the_forward_pass_to_the_update(level: Any, precision: Any) -> None:
    before = settings()
    step, seen = trained(amp.Policy(level, "bfloat16", float32=precision))
    step(torch.ones(3, 4))
    expected = [precision] * len(before)
    assert seen == dict.fromkeys(("forward", "backward", "update"), expected)
    assert settings() == before


def test_the_default_touches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(Float32Setting, "during", refuse)
    torch.set_float32_matmul_precision("high")
    before = settings()
    step, seen = trained(amp.Policy("O1", "bfloat16"))
    step(torch.ones(3, 4))
    assert seen == dict.fromkeys(("forward", "backward", "update"), before)


def test_each_step_of_a_schedule_has_its_own() -> None:
    policies = amp.Policy("O0", float32="ieee"), amp.Policy("O0", float32="tf32")
    step, seen = trained(amp.Schedule([(0, policies[0]), (1, policies[1])]))
    for precision in ("ieee", "tf32"):
        step(torch.ones(3, 4))
        assert set(seen["backward"]) == {precision}


def test_value_and_grad_holds_it_in_the_backward_pass() -> None:
    model, seen = nn.Linear(4, 2), dict[str, Any]()
    amp.value_and_grad(
        lambda model, x: Seen.apply(model(x), seen).mean(),
        model,
        torch.ones(3, 4),
        policy=amp.Policy("O1", "bfloat16", float32="tf32"),
    )
    assert set(seen["backward"]) == {"tf32"}


def test_the_inner_region_decides_and_the_default_inherits() -> None:
    before, found = settings(), []
    with amp.autocast(amp.Policy("O0", float32="ieee"), "torch"):
        with amp.autocast(amp.Policy("O1", "bfloat16", float32="tf32"), "torch"):
            found.append(set(settings()))
        with amp.autocast("O1:bfloat16", "torch"):
            found.append(set(settings()))
        with pytest.raises(ZeroDivisionError), amp.autocast(amp.Policy(float32="tf32"), "torch"):
            raise ZeroDivisionError
        found.append(set(settings()))
    assert found == [{"tf32"}, {"ieee"}, {"ieee"}]
    assert settings() == before


def test_a_decorated_model_sets_it_also_within_a_region_that_casts_alike() -> None:
    found: list[set[str]] = []
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].register_forward_hook(lambda *_: found.append(set(settings())))
    policy = amp.Policy("O1", "bfloat16", lists="native", float32="tf32")
    amp.decorate(model, policy=policy)
    with amp.autocast(policy.replace(float32="ieee"), "torch"):
        model(torch.ones(1, 2))
    assert found == [{"tf32"}]


def test_threads_that_leave_in_another_order_put_back_what_was_there() -> None:
    before, entered, left = settings(), threading.Event(), threading.Event()

    def other() -> None:
        with amp.autocast(amp.Policy("O0", float32="ieee"), "torch"):
            entered.set()
            left.wait()

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait()
    with amp.autocast(amp.Policy("O0", float32="tf32"), "torch"):
        left.set()
        thread.join()
        assert set(settings()) == {"tf32"}
    assert settings() == before


def test_a_loop_of_another_library_s_is_refused() -> None:
    with pytest.raises(
        amp.UnsupportedError, match=r"(?s)in the forward passes alone.*Hint: policy\."
    ):
        LoopPrecision(amp.Policy("O1", "bfloat16", float32="tf32"), None)


# -- torch's new settings, and its old ones


@needs_new
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("own", ["nothing", "one op", "a backend", "the process", "old ones"])
def test_what_the_user_has_set_is_put_back_and_what_inherits_goes_on_to(
    own: str, precision: Any
) -> None:
    if own == "one op":
        BACKENDS.cudnn.conv.fp32_precision = BACKENDS.mkldnn.matmul.fp32_precision = "tf32"
    elif own == "a backend":
        BACKENDS.cudnn.fp32_precision = "tf32"
    elif own == "the process":
        BACKENDS.fp32_precision = "tf32"
    elif own == "old ones":
        torch.set_float32_matmul_precision("medium")

    def inherited() -> list[list[str]]:
        """The settings under each choice for the process, and for a backend."""
        found, present = [settings()], (BACKENDS.fp32_precision, BACKENDS.cudnn.fp32_precision)
        for process, backend in (("ieee", "none"), ("tf32", "none"), ("none", "ieee")):
            BACKENDS.fp32_precision, BACKENDS.cudnn.fp32_precision = process, backend
            found.append(settings())
        BACKENDS.cudnn.fp32_precision = "tf32" if own == "a backend" else "none"
        BACKENDS.fp32_precision = present[0]
        return found

    before = inherited()
    with amp.autocast(amp.Policy("O0", float32=precision), "torch"):
        assert set(settings()) == {precision}
    assert inherited() == before


@pytest.mark.parametrize("precision, old", [("ieee", "highest"), ("tf32", "high")])
def test_the_old_settings_of_matrices_can_be_read_inside(precision: Any, old: str) -> None:
    torch.set_float32_matmul_precision("medium")
    with amp.autocast(amp.Policy("O0", float32=precision), "torch"):
        assert torch.get_float32_matmul_precision() == old
        assert BACKENDS.cuda.matmul.allow_tf32 == (precision == "tf32")
    assert torch.get_float32_matmul_precision() == "medium"


def test_before_torch_2_9_there_are_old_settings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_float32_matmul_precision("medium")
    with monkeypatch.context() as older:
        older.setattr(_private, "float32_settings", lambda: (None, None))
        for precision, allowed in (("ieee", False), ("tf32", True)):
            with amp.autocast(amp.Policy("O0", float32=precision), "torch"):
                assert BACKENDS.cuda.matmul.allow_tf32 == BACKENDS.cudnn.allow_tf32 == allowed
    assert torch.get_float32_matmul_precision() == "medium"
    assert BACKENDS.cudnn.allow_tf32


# -- compiled


@pytest.mark.slow
def test_a_compiled_step_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[Any] = []
    inductor = _private.inductor

    def counted(*arguments: Any) -> Any:
        graphs.append(settings())
        return inductor(*arguments)

    monkeypatch.setattr(_private, "inductor", counted)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    policy = amp.Policy("O1", "bfloat16", execution="native", float32="tf32")
    step = amp.train_step(
        lambda model, x: model(x).square().mean(), model, optimizer, policy=policy, compile=True
    )
    step(torch.ones(3, 4))
    step(torch.ones(3, 4))
    after_two = len(graphs)
    for _ in range(3):
        step(torch.ones(3, 4))
    assert 0 < after_two == len(graphs)
    assert {each for graph in graphs for each in graph} == {"tf32"}


def test_a_region_in_compiled_code_is_refused_unless_one_around_says_the_same() -> None:
    policy = amp.Policy("O0", float32="tf32")

    @torch.compile(backend="eager", fullgraph=True)
    def product(x: Tensor) -> Tensor:
        with amp.autocast(policy, "torch"):
            return x @ x

    x = torch.eye(2)
    with pytest.raises(Exception, match=r"torch.compile traces a region with float32='tf32'"):
        product(x)
    with amp.autocast(policy, "torch"):
        assert torch.equal(product(x), x)


def test_a_simulation_is_not_compiled() -> None:
    policy = amp.Policy("O0", float32="tf32", execution="simulated")
    step, _ = trained(policy, compile=True)
    with pytest.raises(amp.UnsupportedError, match="cannot compile a simulation of TF32"):
        step(torch.ones(3, 4))


# -- rounding


def by_numpy(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Rounded to 10 bits of fraction by arithmetic in float64: to the nearest, ties to even."""
    exponent = np.maximum(np.frexp(x.astype(np.float64))[1], -125)  # below lie the subnormals
    fraction = np.ldexp(x.astype(np.float64), -exponent)
    return np.ldexp(np.rint(fraction * 2**11), exponent - 11)


def test_values_are_rounded_to_10_bits_of_fraction() -> None:
    drawn = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    ties = np.float32([1 + 2.0**-11, 1 + 3 * 2.0**-11, -1 - 2.0**-11, 1 + 2.0**-11 + 2.0**-23])
    x = np.concatenate([drawn, drawn * np.float32(1e-37), ties, np.float32([0, -0.0, np.inf])])
    assert np.array_equal(float32.to_tf32(torch.from_numpy(x)).numpy(), by_numpy(x).astype("f4"))
    assert float32.to_tf32(torch.tensor(torch.nan)).isnan()


PRODUCTS = {
    "linear": lambda x, w: nn.functional.linear(x, w, torch.ones(8)),
    "matmul": lambda x, w: x @ w.T,
    "bmm": lambda x, w: torch.bmm(x[None], w.T[None])[0],
    "conv1d": lambda x, w: nn.functional.conv1d(x.T[None], w[:, :, None], torch.ones(8))[0].T,
    "einsum": lambda x, w: torch.einsum("ik,jk->ij", x, w),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_take_rounded_inputs_forward_and_backward(name: str) -> None:
    """By float64 on rounded values; in float32 sums of 16 terms differ by 1e-6 at most."""
    draw = np.random.default_rng(1).standard_normal
    x, w, g = (draw(s).astype(np.float32) for s in ((4, 16), (8, 16), (4, 8)))
    inputs = [torch.from_numpy(each).requires_grad_() for each in (x, w)]
    policy = amp.Policy("O0", float32="tf32", execution="simulated")

    def loss_fn(_: nn.Module, *given: Tensor) -> tuple[Tensor, Tensor]:
        result = PRODUCTS[name](*given)
        return (result * torch.from_numpy(g)).sum(), result

    model = nn.ParameterList(inputs)
    (_, result), found = amp.value_and_grad(
        lambda model: loss_fn(model, *model), model, policy=policy
    )
    x, w, g = map(by_numpy, (x, w, g))
    bias = name in ("linear", "conv1d")
    for ours, theirs in ((result, x @ w.T + bias), (found[0], g @ w), (found[1], g.T @ x)):
        assert np.abs(ours.numpy() - theirs).max() < 4e-6


def test_nothing_is_rounded_unless_it_is_simulated() -> None:
    x = torch.full((2, 2), 1 + 2.0**-20)
    exact, rounded = x @ x, torch.full((2, 2), 2.0)
    with (
        torch.inference_mode(),
        amp.autocast(amp.Policy("O0", float32="tf32", execution="simulated"), "torch"),
    ):
        assert torch.equal(nn.functional.linear(x, x), rounded)
    for execution, expected in (("auto", exact), ("simulated", rounded)):
        with amp.autocast(amp.Policy("O0", float32="tf32", execution=execution), "torch"):
            assert torch.equal(x @ x, expected)
    assert torch.equal(x @ x, exact)


def test_align_shows_what_tf32_would_change() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    x = torch.randn(4, 8)

    def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).square().mean()  # type: ignore[no-any-return]

    tf32 = amp.Policy("O0", float32="tf32", execution="simulated")
    found = amp.lens.align((loss_fn, model, tf32), (loss_fn, model, "O0"), x)
    assert found.forward is not None
    assert found.forward.a.op == "linear"
    assert 2.0**-14 < found.forward.error < 2.0**-9
