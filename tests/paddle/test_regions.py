"""Regions: nesting, exceptions, threads, and what is left of them afterwards."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn
from paddle.distributed.fleet.recompute.recompute import RecomputeFunction
from paddle_reference import is_representable, normal, rounded

import ampbridge as amp
from ampbridge_paddle.autocast import simulation

A, B = normal(6, 8), normal(8, 8, seed=1)
EXACT = A @ B
SQUARE = normal(4, 4, seed=2)


def product() -> np.ndarray:
    return paddle.matmul(paddle.to_tensor(A), paddle.to_tensor(B)).numpy()


def precision() -> str:
    """What a product, which every policy here allows, is computed in."""
    got = product()
    # bfloat16 first: float16 holds most of its values, not the other way round.
    return next((d for d in ("bfloat16", "float16") if is_representable(got, d)), "float32")


def attributes() -> dict[tuple[str, str], Any]:
    """Everything that a region might replace."""
    owners = [m for n, m in sys.modules.items() if m is not None and n.startswith("paddle")]
    classes = [
        *(paddle.Tensor, paddle.pir.Value, paddle.nn.LSTMCell, paddle.nn.MultiHeadAttention),
        *(paddle.jit.dy2static.program_translator.StaticFunction, RecomputeFunction),
    ]
    return {
        (repr(owner)[:80], name): value
        for owner in [*owners, *classes]
        for name, value in list(vars(owner).items())
    }


@pytest.fixture
def restored() -> Iterator[None]:
    with amp.autocast("O1", "paddle"):
        pass  # so that lazily imported modules are there
    before = attributes()
    yield
    after = attributes()
    assert before.keys() == after.keys()
    changed = [name for name in before if before[name] is not after[name]]
    assert changed == []
    assert simulation.active_region() is None


@pytest.mark.usefixtures("restored")
class TestRegions:
    def test_inner_policy_alone_counts(self) -> None:
        seen = []
        with amp.autocast("O1:float16", "paddle"):
            seen.append(precision())
            with amp.autocast("O1:bfloat16", "paddle"):
                seen.append(precision())
                with amp.autocast("O0", "paddle"):
                    seen.append(precision())
                seen.append(precision())
            seen.append(precision())
        seen.append(precision())
        assert seen == ["float16", "bfloat16", "float32", "bfloat16", "float16", "float32"]

    def test_float32_region_takes_low_tensors_up(self) -> None:
        with amp.autocast("O1:float16", "paddle"):
            low = paddle.matmul(paddle.to_tensor(A), paddle.to_tensor(B))
            with amp.autocast("O0", "paddle"):
                total = low + low * 0.37
                stored = paddle.ones([2], "float16") + paddle.ones([2], "float16")
        exact = low.numpy() + low.numpy() * np.float32(0.37)
        assert np.array_equal(total.numpy(), exact)
        assert stored.dtype == paddle.float32

    def test_float32_alone_intercepts_nothing(self) -> None:
        original = paddle._C_ops.matmul
        with amp.autocast("O0", "paddle"):
            assert paddle._C_ops.matmul is original
        with amp.autocast("O1", "paddle"):
            assert paddle._C_ops.matmul is not original

    def test_exception_leaves_nothing(self) -> None:
        def fail() -> None:
            with amp.autocast("O1", "paddle"), amp.autocast("O1:bfloat16", "paddle"):
                assert precision() == "bfloat16"
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert precision() == "float32"

    def test_exception_of_an_op_leaves_the_region_as_it_was(self) -> None:
        with amp.autocast("O1", "paddle"):
            for call in (
                lambda: paddle.matmul(paddle.ones([2, 3]), paddle.ones([2, 3])),
                lambda: F.scaled_dot_product_attention(paddle.ones([2]), paddle.ones([2]), None),
                lambda: F.mse_loss(paddle.ones([2]), None),
            ):
                with pytest.raises((ValueError, TypeError, AttributeError, IndexError)):
                    call()
                assert precision() == "float16"

    def test_decorator(self) -> None:
        assert amp.autocast("O1", "paddle")(precision)() == "float16"
        assert precision() == "float32"

    def test_one_policy_many_times(self) -> None:
        policy = amp.Policy("O1")
        with ExitStack() as stack:
            for _ in range(20):
                stack.enter_context(amp.autocast(policy, "paddle"))
            assert precision() == "float16"

    def test_eight_threads(self) -> None:
        wanted = [
            "float16",
            "bfloat16",
            "float32",
            "float16",
            "bfloat16",
            "float32",
            "none",
            "none",
        ]
        together = threading.Barrier(len(wanted))

        def run(dtype: str) -> set[str]:
            seen = set()
            for _ in range(30):
                together.wait()
                if dtype == "none":
                    seen.add(precision())
                    continue
                policy = "O0" if dtype == "float32" else f"O1:{dtype}"
                with amp.autocast(policy, "paddle"):
                    seen.add(precision())
            return seen

        with ThreadPoolExecutor(len(wanted)) as pool:
            results = list(pool.map(run, wanted))
        assert results == [{"float32" if d == "none" else d} for d in wanted]

    def test_names_of_functions_that_a_module_imported(self) -> None:
        module = sys.modules[__name__]
        module.own_mse_loss = F.mse_loss  # type: ignore[attr-defined]
        try:
            with amp.autocast(amp.Policy("O1", deny=["mse_loss"]), "paddle"):
                low = paddle.to_tensor(A).astype("float16")
                half = paddle.to_tensor(A * 0.3).astype("float16")
                loss = module.own_mse_loss(low, half, "none")
            expected = (rounded(A, "float16") - rounded(A * 0.3, "float16")) ** 2
            assert np.array_equal(loss.numpy(), expected.astype(np.float32))
        finally:
            del module.own_mse_loss  # type: ignore[attr-defined]


class TestMarks:
    """What counts as low, and what does not any more."""

    @pytest.fixture(autouse=True)
    def _region(self) -> Iterator[None]:
        with amp.autocast("O1:float16", "paddle"):
            yield

    @staticmethod
    def follows_low(x: paddle.Tensor) -> bool:
        return is_representable(paddle.sin(x), "float16")

    @pytest.fixture
    def low(self) -> paddle.Tensor:
        return paddle.matmul(paddle.to_tensor(A), paddle.to_tensor(B))

    @pytest.mark.parametrize(
        "keep",
        [
            lambda t: t.clone(),
            lambda t: t.detach(),
            lambda t: t[1:3],
            lambda t: t[:, 2],
            lambda t: t.T,
            lambda t: t.reshape([-1]),
            lambda t: t.flatten(),
            lambda t: t.unsqueeze(0).squeeze(0),
            lambda t: t.contiguous(),
            lambda t: paddle.assign(t),
            lambda t: paddle.split(t, 2)[1],
            lambda t: next(iter(t)),
            lambda t: t.astype("float16"),
            lambda t: t.half(),
            lambda t: F.relu_(t),
            lambda t: F.dropout(t, 0.0),
        ],
    )
    def test_kept(self, low: paddle.Tensor, keep: Any) -> None:
        assert self.follows_low(keep(low))

    @pytest.mark.parametrize(
        "lose",
        [
            lambda t: t.astype("float32"),
            lambda t: t.float(),
            lambda t: t.cast("float32"),
            lambda t: t.add_(paddle.full_like(t, 0.1)),
            lambda t: t.scale_(0.3),
            lambda t: t + paddle.to_tensor(EXACT),
        ],
    )
    def test_lost(self, low: paddle.Tensor, lose: Any) -> None:
        assert not self.follows_low(lose(low))

    def test_item_assignment(self, low: paddle.Tensor) -> None:
        low[0] = 0.1
        assert not self.follows_low(low)

    def test_of_another_low_precision(self, low: paddle.Tensor) -> None:
        with amp.autocast("O1:bfloat16", "paddle"):
            mixed = low + paddle.to_tensor(A).astype("bfloat16")
        assert np.array_equal(mixed.numpy(), low.numpy() + rounded(A, "bfloat16"))

    def test_really_16_bit_tensors_are_read(self) -> None:
        stored = paddle.to_tensor(A.astype(np.float16))
        assert stored.dtype == paddle.float16
        assert np.array_equal(paddle.abs(stored).numpy(), np.abs(rounded(A, "float16")))
        assert not is_representable(paddle.exp(stored), "float16")

    def test_float64_and_integers_are_left_alone(self) -> None:
        double = paddle.to_tensor(A.astype(np.float64))
        assert np.array_equal(
            paddle.matmul(double, double.T).numpy(), A.astype("f8") @ A.T.astype("f8")
        )
        assert paddle.arange(4).matmul(paddle.arange(4)).dtype == paddle.int64


def test_simulation_that_nobody_asked_for_warns_once_a_process() -> None:
    program = """
import warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import paddle
import ampbridge as amp
asked_for = amp.Policy("O1", execution="simulated")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for policy in (asked_for, "O1", asked_for, "O2", "O1"):
        with amp.autocast(policy, "paddle"):
            paddle.ones([2]) + 1
        print(len(caught), end=" ")
print([w.category.__name__ for w in caught])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "0 1 1 1 1 ['SimulationWarning']"


@pytest.mark.parametrize(
    "policy, hint",
    [
        (amp.Policy("O1", execution="native"), "Hint: execution='simulated'"),
        (amp.Policy("O1", lists="native"), "Hint: Policy('O1', 'float16', lists='paddle')"),
    ],
)
def test_what_a_cpu_cannot_give(policy: amp.Policy, hint: str) -> None:
    with (
        pytest.raises(amp.UnsupportedError, match=r"(?s)CPU.*") as error,
        amp.autocast(policy, "paddle"),
    ):
        pass
    assert hint in str(error.value)


def test_simulation_on_request() -> None:
    with amp.autocast(amp.Policy("O1", execution="simulated"), "paddle"):
        assert precision() == "float16"


def test_an_op_that_paddle_lacks_is_not_listed_in_silence() -> None:
    with (
        pytest.warns(amp.AmpBridgeWarning, match=r"deny=\['addmv', 'cast'\] has no effect"),
        amp.autocast(amp.Policy("O1", deny=["addmv", "cast", "exp"]), "paddle"),
    ):
        pass


def test_layers_with_a_rule_of_their_own() -> None:
    paddle.seed(1)
    cell, x = paddle.nn.LSTMCell(8, 8), paddle.to_tensor(A)
    plain, _ = cell(x)
    with amp.autocast("O1", "paddle"):
        allowed, _ = cell(x)  # listed by torch
    with amp.autocast(amp.Policy("O1", deny=["lstm_cell"]), "paddle"):
        denied, _ = cell(x)
    assert is_representable(allowed, "float16")
    assert np.array_equal(denied.numpy(), plain.numpy())


def test_attention_of_the_layer_follows_its_parts() -> None:
    """Projections low, softmax float32, unless the user names it."""
    layer, x = paddle.nn.MultiHeadAttention(8, 2), paddle.to_tensor(normal(2, 5, 8))
    layer.eval()
    plain = layer(x)
    with amp.autocast("O1", "paddle"):
        by_parts = layer(x)
    with amp.autocast(amp.Policy("O1", deny=["multi_head_attention"]), "paddle"):
        denied = layer(x)
    assert is_representable(by_parts, "float16")
    assert np.array_equal(denied.numpy(), plain.numpy())


@pytest.mark.parametrize("lists", ["torch", "paddle"])
def test_the_bias_of_linear_and_convolution(lists: str) -> None:
    """As fused kernels have it; by Paddle's own lists conv2d is low and adding the bias promotes."""
    linear, conv = paddle.nn.Linear(8, 8), paddle.nn.Conv2D(3, 4, 3, data_format="NHWC")
    for parameter in (linear.bias, conv.bias):
        parameter.set_value(normal(*parameter.shape))
    x, image = paddle.to_tensor(A), paddle.to_tensor(normal(2, 6, 6, 3))
    with amp.autocast(amp.Policy("O1", lists=lists), "paddle"):
        assert is_representable(linear(x), "float16")
        assert is_representable(conv(image), "float16") == (lists == "torch")
    plain = conv(image).numpy()
    with amp.autocast(amp.Policy("O1", lists=lists, deny=["conv2d"]), "paddle"):
        assert np.array_equal(conv(image).numpy(), plain)


@pytest.mark.filterwarnings("ignore:Tensor do not have 'place':UserWarning")  # while it traces
class TestCompiledBefore:
    """``paddle.jit.to_static`` keeps the programs that it has traced, in whatever precision that was."""

    SAYS = r"Linear.forward is compiled by paddle.jit.to_static.* runs op by op\.\nHint: .*compile=True"

    @staticmethod
    def outputs(model: Any, policies: list[str]) -> list[np.ndarray]:
        found = []
        for policy in policies:
            with amp.autocast(policy, "paddle"):
                found.append(model(paddle.to_tensor(SQUARE)).numpy())
        return found

    @pytest.mark.parametrize("full_graph", [True, False])
    @pytest.mark.parametrize("first", [["O0"], ["O1:bfloat16"], ["O1"]])
    def test_it_follows_each_region(self, first: list[str], full_graph: bool) -> None:
        layer = nn.Linear(4, 4)
        policies = [*first, "O0", "O1:bfloat16", "O1", "O0"]
        expected = self.outputs(layer, policies)
        compiled = paddle.jit.to_static(layer, full_graph=full_graph)
        with pytest.warns(amp.AmpBridgeWarning, match=self.SAYS):
            found = self.outputs(compiled, policies)
        for one, other in zip(found, expected, strict=True):
            assert np.allclose(one, other, rtol=1e-6, atol=1e-7)
        assert not np.allclose(expected[1], expected[2], rtol=1e-6, atol=1e-7)

    @pytest.mark.parametrize("full_graph", [True, False])
    @pytest.mark.parametrize("policy", ["O1:bfloat16", "O2:bfloat16"])
    def test_a_step_of_a_model_with_such_a_layer(self, policy: str, full_graph: bool) -> None:
        def losses(compiled: bool) -> list[float]:
            paddle.seed(5)
            model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
            x = paddle.to_tensor(SQUARE)
            if compiled:
                paddle.jit.to_static(model[2], full_graph=full_graph)(x)
            sgd = paddle.optimizer.SGD(0.1, parameters=model.parameters())
            step = amp.train_step(lambda m, x: m(x).square().mean(), model, sgd, policy=policy)
            return [step(x).loss for _ in range(3)]

        plain = losses(compiled=False)
        with pytest.warns(amp.AmpBridgeWarning, match=self.SAYS):
            assert losses(compiled=True) == plain

    def test_outside_of_regions_it_stays_compiled(self) -> None:
        layer = paddle.jit.to_static(nn.Linear(4, 4), full_graph=True)
        with pytest.warns(amp.AmpBridgeWarning, match=self.SAYS):
            self.outputs(layer, ["O1"])
        assert layer.forward.get_traced_count() == 0
        self.outputs(layer, ["O0"])
        assert layer.forward.get_traced_count() == 1
