"""``Policy(float32=...)``: Paddle's switches of cuBLAS and cuDNN, read where kernels run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import paddle
import pytest
from paddle.autograd import PyLayer
from paddle.base import core

import ampbridge as amp
import ampbridge_paddle
from ampbridge.adapters.roles.probing import Device
from ampbridge_paddle import probing


def switches() -> tuple[bool, bool]:
    return core.get_cublas_switch(), core.get_cudnn_switch()


@pytest.fixture(autouse=True, params=[(True, True), (False, True)], ids=str)
def before(request: pytest.FixtureRequest) -> Iterator[tuple[bool, bool]]:
    """What the user has set: Paddle allows TF32 by default."""
    core.set_cublas_switch(request.param[0])
    core.set_cudnn_switch(request.param[1])
    yield request.param
    assert switches() == request.param
    core.set_cublas_switch(True)


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_a_step_holds_it_from_the_forward_pass_to_the_update(precision: Any) -> None:
    found: dict[str, Any] = {}

    class Noting(PyLayer):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            found["forward"] = switches()
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            found["backward"] = switches()
            return gradient

    class SGD(paddle.optimizer.SGD):  # type: ignore[misc]
        def step(self) -> None:
            found["update"] = switches()
            super().step()

    model = paddle.nn.Linear(4, 2)
    optimizer = SGD(0.1, model.parameters())
    step = amp.train_step(
        lambda model, x: (Noting.apply(model(x)) ** 2).mean(),
        model,
        optimizer,
        policy=amp.Policy("O1", "bfloat16", float32=precision),
    )
    step(paddle.ones([3, 4]))
    both = (precision == "tf32",) * 2
    assert found == dict.fromkeys(("forward", "backward", "update"), both)


def test_regions_nest_and_an_exception_leaves_them(before: tuple[bool, bool]) -> None:
    found = []
    with amp.autocast(amp.Policy("O0", float32="ieee"), "paddle"):
        with pytest.raises(ZeroDivisionError), amp.autocast(amp.Policy(float32="tf32"), "paddle"):
            found.append(switches())
            raise ZeroDivisionError
        with amp.autocast("O1", "paddle"):
            found.append(switches())
    assert [*found, switches()] == [(True, True), (False, False), before]


def test_a_traced_region_is_refused_unless_one_around_the_call_says_the_same() -> None:
    policy = amp.Policy("O0", float32="tf32")

    @paddle.jit.to_static(full_graph=True)
    def product(x: Any) -> Any:
        with amp.autocast(policy, "paddle"):
            return x @ x

    with pytest.raises(amp.UnsupportedError, match=r"paddle.jit.to_static traces a region"):
        product(paddle.eye(2))
    with amp.autocast(policy, "paddle"):
        product(paddle.eye(2))


@pytest.mark.parametrize("kind, allowed", [("gpu", "TF32"), ("npu", "float32")])
def test_doctor_shows_what_float32_means(kind: str, allowed: str) -> None:
    """The settings can be read without the device."""
    device = Device(f"{kind}:0", kind, "A device")
    for policy in (amp.Policy("O0", float32="tf32"), amp.Policy("O0", float32="ieee")):
        with amp.autocast(policy, "paddle"):
            precision = allowed if policy.float32 == "tf32" else "float32"
            told = probing._float32_products(device)
            assert told == f"{precision}, of convolutions {precision}"
    assert probing._float32_products(Device("cpu", "cpu", "A CPU")) == "float32"


def test_a_loop_of_paddle_s_is_refused() -> None:
    net = paddle.nn.Linear(4, 2)
    with pytest.raises(amp.UnsupportedError, match="in the forward passes alone"):
        ampbridge_paddle.prepare(
            paddle.Model(net),
            paddle.optimizer.SGD(0.1, net.parameters()),
            paddle.nn.MSELoss(),
            policy=amp.Policy("O1", float32="ieee"),
        )


def test_tf32_is_not_simulated() -> None:
    policy = amp.Policy("O0", float32="tf32", execution="simulated")
    with pytest.raises(amp.UnsupportedError, match="paddle: this adapter cannot simulate TF32"):
        amp.autocast(policy, "paddle").__enter__()
