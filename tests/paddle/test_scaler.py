"""The GradScaler on Paddle, beside the native one, whose bugs each test shows first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import paddle
import pytest
from paddle.amp import grad_scaler as native_module
from paddle_native_scaler import native_scaler, without_print
from paddle_reference import bits, normal

import ampbridge as amp
from ampbridge_paddle.step import ranks, scaling
from ampbridge_paddle.step.gradients import stored_gradients

FINITE, INF, NAN = 0, 1, 2


def parameter(*values: float, dtype: str = "float32") -> paddle.Tensor:
    made = paddle.create_parameter([len(values)], dtype)
    made.set_value(np.array(values, dtype))
    return made


def optimizer(*parameters: paddle.Tensor) -> paddle.optimizer.Optimizer:
    return paddle.optimizer.SGD(1.0, parameters=list(parameters))


def scaled(scaler: amp.GradScaler) -> amp.GradScaler:
    """``scaler``, which has scaled a loss: the gradients are given by hand below."""
    scaler.scale(paddle.ones([]))
    return scaler


def give(parameter: paddle.Tensor, *grads: float) -> None:
    parameter.grad = paddle.to_tensor(list(grads), dtype=parameter.dtype)


class TestNativeBugs:
    def test_backoff_with_numpy_2_4(self) -> None:
        p = parameter(1.0)
        sgd = optimizer(p)
        if np.lib.NumpyVersion(np.__version__) >= "2.4.0":
            native = native_scaler(init_loss_scaling=8.0)
            give(p, np.inf)
            native.step(sgd)
            with pytest.raises(TypeError):
                native.update()
        sgd = optimizer(p)
        scaler = scaled(amp.GradScaler(8.0))
        give(p, np.inf)
        assert not scaler.step(sgd)
        scaler.update()
        assert scaler.get_scale() == 4.0

    def test_two_optimizers(self) -> None:
        p, q = parameter(1.0), parameter(1.0)
        first, second = optimizer(p), optimizer(q)
        native = native_scaler(init_loss_scaling=8.0)
        give(p, np.inf)
        give(q, 8.0)
        native.unscale_(first)
        native.unscale_(second)
        native.step(first)
        assert np.isnan(p.numpy()).all()  # the second's check overwrote the first's

        p, q = parameter(1.0), parameter(1.0)
        first, second = optimizer(p), optimizer(q)
        scaler = scaled(amp.GradScaler(8.0))
        give(p, np.inf)
        give(q, 8.0)
        scaler.unscale(first)
        scaler.unscale(second)
        assert (scaler.step(first), scaler.step(second)) == (False, True)
        scaler.update()
        assert (p.item(), q.item(), scaler.get_scale()) == (1.0, 0.0, 4.0)

    def test_plain_step_after_a_skipped_one(self) -> None:
        p = parameter(1.0)
        sgd = optimizer(p)
        native = native_scaler(init_loss_scaling=8.0)
        give(p, np.inf)
        native.step(sgd)
        give(p, 0.5)
        sgd.step()
        assert p.item() == 1.0  # nothing happened, and nothing was said

        sgd = optimizer(p)
        scaler = scaled(amp.GradScaler(8.0))
        give(p, np.inf)
        scaler.step(sgd)
        give(p, 0.5)
        sgd.step()
        assert p.item() == 0.5

    def test_dtype_of_the_last_region_does_not_disable(self) -> None:
        native = native_scaler(init_loss_scaling=8.0)
        native_module.amp_global_state().amp_dtype = "bfloat16"
        with pytest.warns(UserWarning, match="GradScaler is disable"):
            assert native.scale(paddle.ones([1])).item() == 1.0
        native_module.amp_global_state().amp_dtype = "float16"
        assert native.scale(paddle.ones([1])).item() == 1.0  # disabled for good

        scaler = scaled(amp.GradScaler(8.0))
        with amp.autocast("O1:bfloat16", "paddle"):
            pass
        assert scaler.scale(paddle.ones([])).item() == 8.0

    def test_steps_of_both_optimizers_before_the_update(self) -> None:
        p, q = parameter(1.0), parameter(1.0)
        first, second = optimizer(p), optimizer(q)
        native = native_scaler(init_loss_scaling=8.0)
        give(p, np.inf)
        give(q, 8.0)
        native.step(first)
        native.step(second)
        native.update()
        assert native.state_dict()["scale"].item() == 8.0  # the first's overflow is forgotten

        first, second = optimizer(p), optimizer(q)
        scaler = scaled(amp.GradScaler(8.0))
        give(p, np.inf)
        give(q, 8.0)
        assert (scaler.step(first), scaler.step(second)) == (False, True)
        scaler.update()
        assert scaler.get_scale() == 4.0

    def test_scaling_before_any_region(self) -> None:
        """Paddle's process begins with the dtype float32, which switches the scaler off."""
        native = native_scaler(init_loss_scaling=8.0)
        native_module.amp_global_state().amp_dtype = "float32"
        with pytest.warns(UserWarning, match="GradScaler is disable"):
            assert native.scale(paddle.ones([1])).item() == 1.0
        assert amp.GradScaler(8.0).scale(paddle.ones([])).item() == 8.0

    def test_a_scale_that_reaches_zero_or_infinity(self) -> None:
        p = parameter(1.0)
        with without_print():
            for gradient, end in ((np.inf, 0.0), (0.0, np.inf)):
                native = native_scaler(init_loss_scaling=1.0, incr_every_n_steps=1)
                sgd = optimizer(p)
                for _ in range(170):
                    give(p, gradient)
                    native.step(sgd)
                    native.update()
                assert native.state_dict()["scale"].item() == end
        for gradient, end in ((np.inf, 2.0**-126), (0.0, 2.0**127)):
            scaler = scaled(
                amp.GradScaler.like(
                    "paddle", init_scale=1.0, growth_interval=1, warn_after_skips=None
                )
            )
            for _ in range(170):
                give(p, gradient)
                scaler.step(optimizer(p))
                scaler.update()
            assert scaler.get_scale() == end

    def test_a_scale_whose_reciprocal_overflows(self) -> None:
        """Finite gradients become infinite, unseen, and the step is taken."""
        p = parameter(1.0)
        native = native_scaler(init_loss_scaling=2.0**-129)
        give(p, 2.0**-10)
        native.step(optimizer(p))
        assert not np.isfinite(p.numpy()).all()

        with pytest.raises(amp.ArgumentError, match="min_scale"):
            amp.GradScaler(2.0**-129, min_scale=2.0**-129)
        p = parameter(1.0)
        scaler = scaled(amp.GradScaler(2.0**-126, min_scale=2.0**-126))
        give(p, 2.0**-127)
        assert scaler.step(optimizer(p))
        assert p.item() == 0.5

    def test_overflows_are_told_apart_by_parameter(self) -> None:
        """The native check leaves NaN, zeros and scaled gradients where it found an inf."""
        p, q, r = parameter(1.0), parameter(1.0), parameter(1.0)
        native = native_scaler(init_loss_scaling=8.0)
        give(p, 8.0)
        give(q, np.inf)
        give(r, 8.0)
        native.unscale_(optimizer(p, q, r))
        assert (p.grad.item(), np.isnan(q.grad.item()), r.grad.item()) == (1.0, True, 0.0)

        model = paddle.nn.Layer()
        model.p, model.q, model.r = p, q, r

        def loss_fn(model: paddle.nn.Layer) -> Any:
            return (model.p + model.q * np.inf + model.r).sum()

        step = amp.train_step(loss_fn, model, optimizer(p, q, r), name_overflows=True)
        assert step().overflows == {"q": "inf"}

    def test_an_optimizer_without_gradients(self) -> None:
        """The native kernel refuses an empty list."""
        with pytest.raises(ValueError, match="empty"):
            paddle._C_ops.check_finite_and_unscale_([], paddle.ones([1]))
        p = parameter(1.0)
        grouped = paddle.optimizer.AdamW(parameters=[{"params": [p]}])
        scaler = scaled(amp.GradScaler(8.0))
        with pytest.raises(amp.CallOrderError, match="not one gradient"):
            scaler.step(grouped)
        give(p, 0.0)
        assert scaler.step(grouped)
        scaler.update()
        assert scaler.get_scale() == 8.0

    def test_floor_and_ceiling(self) -> None:
        p = parameter(1.0)
        scaler = scaled(amp.GradScaler(1.0, growth_interval=1, warn_after_skips=None))
        for gradient, bound in ((np.inf, 2.0**-24), (0.0, 2.0**24)):
            for _ in range(60):
                give(p, gradient)
                scaler.step(optimizer(p))
                scaler.update()
            assert scaler.get_scale() == bound

    def test_float64_gradients(self) -> None:
        p, q = parameter(1.0, dtype="float64"), parameter(1.0)
        sgd = optimizer(p, q)
        native = native_scaler(init_loss_scaling=1024.0)
        give(p, 1024.0)
        give(q, 1024.0)
        native.unscale_(sgd)
        assert (p.grad.item(), q.grad.item()) == (1024.0, 1.0)

        scaler = scaled(amp.GradScaler(1024.0))
        give(p, 1024.0)
        give(q, 1024.0)
        scaler.unscale(sgd)
        assert (p.grad.item(), q.grad.item()) == (1.0, 1.0)
        assert p.grad.dtype == paddle.float64

    def test_scalar_loss_stays_a_scalar(self) -> None:
        native = native_scaler(init_loss_scaling=8.0)
        assert native.scale(paddle.ones([])).shape == [1]
        assert amp.GradScaler(8.0).scale(paddle.ones([])).shape == []

    def test_nothing_is_printed(self, capsys: pytest.CaptureFixture[str]) -> None:
        p = parameter(1.0)
        native = native_scaler(init_loss_scaling=8.0)
        give(p, np.inf)
        native.step(optimizer(p))
        with mock.patch.object(native_module, "float", str, create=True):
            native.update()
        assert "Found inf or nan, current scale is" in capsys.readouterr().out

        scaler = scaled(amp.GradScaler(8.0))
        give(p, np.inf)
        scaler.step(optimizer(p))
        scaler.update()
        assert capsys.readouterr().out == ""

    def test_sparse_gradients(self) -> None:
        table = paddle.nn.Embedding(5, 2, sparse=True)
        sgd = optimizer(table.weight)
        before = table.weight.numpy()
        native = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", NATIVE_WITH_SPARSE_GRADIENTS],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
        assert native.stdout.startswith("backward\n")
        assert native.returncode != 0  # a SystemError, or a crash that prints where it was

        scaler = scaled(amp.GradScaler(8.0))
        scaler.scale(table(paddle.to_tensor([1, 3, 3])).sum()).backward()
        assert scaler.step(sgd)
        scaler.update()
        counts = np.array([0, 1, 0, 2, 0], np.float32)[:, None]
        assert np.allclose(table.weight.numpy(), before - counts, atol=1e-6)

        sgd.clear_grad()
        after = bits(table.weight)
        (scaler.scale(table(paddle.to_tensor([2])).sum()) * float("inf")).backward()
        assert not scaler.step(sgd)
        assert bits(table.weight) == after

    def test_a_step_leaves_the_rows_of_a_sparse_gradient(self) -> None:
        """As Paddle's own step does, without a scaler."""
        rows = []
        for scaler in (None, scaled(amp.GradScaler(8.0))):
            table = paddle.nn.Embedding(5, 2, sparse=True)
            table(paddle.to_tensor([1, 3, 3])).sum().backward()
            sgd = optimizer(table.weight)
            if scaler is None:
                sgd.step()
            else:
                scaler.step(sgd)
            rows.append(table.weight.grad.rows())
        assert rows == [[1, 3, 3], [1, 3, 3]]


NATIVE_WITH_SPARSE_GRADIENTS = """
import paddle
from paddle_native_scaler import native_scaler

table = paddle.nn.Embedding(5, 2, sparse=True)
sgd = paddle.optimizer.SGD(1.0, parameters=table.parameters())
native = native_scaler(init_loss_scaling=8.0)
native.scale(table(paddle.to_tensor([1, 3, 3])).sum()).backward()
print("backward", flush=True)
native.step(sgd)
"""


@pytest.mark.parametrize("seed", range(4))
def test_in_step_with_the_native_rule(seed: int) -> None:
    """Random histories; the native ``update`` without its print, which raises (see above)."""
    rng = np.random.default_rng(seed)
    every, bad = int(rng.integers(1, 5)), int(rng.integers(1, 3))
    p, q = parameter(1.0), parameter(1.0)
    mine, theirs = optimizer(p), optimizer(q)
    scaler = scaled(
        amp.GradScaler(1024.0, growth_interval=every, backoff_interval=bad, max_scale=2.0**100)
    )
    native = native_scaler(
        init_loss_scaling=1024.0, incr_every_n_steps=every, decr_every_n_nan_or_inf=bad
    )
    with without_print():
        for _ in range(60):
            gradient = float(rng.choice([1.0, 3.0, np.inf, np.nan], p=[0.4, 0.3, 0.2, 0.1]))
            give(p, gradient)
            give(q, gradient)
            scaler.step(mine)
            native.step(theirs)
            scaler.update()
            native.update()
            assert scaler.get_scale() == native.state_dict()["scale"].item()
            assert bits(p) == bits(q)


def test_native_state_is_read() -> None:
    native = native_scaler(init_loss_scaling=512.0, incr_every_n_steps=7)
    scaler = amp.GradScaler()
    scaler.load_state_dict(native.state_dict())
    assert (scaler.get_scale(), scaler.config.growth_interval) == (512.0, 7)


@pytest.mark.parametrize(
    "gradients, found, dtype",
    [
        ([[1.0, 2.0], [3.0]], FINITE, "float64"),
        ([[1.0, np.inf], [3.0]], INF, "float64"),
        ([[1.0, -np.inf], [3.0]], INF, "float64"),
        ([[1.0, np.nan], [3.0]], NAN, "float64"),
        ([[np.nan, 1.0], [np.inf]], INF, "float64"),
        ([[np.inf, 1.0], [np.nan]], INF, "float64"),
        ([[3e38, -3e38], [3e38]], FINITE, "float32"),  # finite, though the sum of squares is not
        ([[3e307, -3e307], [3e307]], FINITE, "float64"),
        ([[1e30], [np.nan]], NAN, "float32"),
        ([[1e300], [np.nan]], NAN, "float64"),
    ],
)
def test_what_was_found(gradients: list[list[float]], found: int, dtype: str) -> None:
    tensors = [paddle.to_tensor(g, dtype=dtype) for g in gradients]
    unscaled, result = scaling.unscale([*tensors, None], 4.0)
    assert result == found
    assert unscaled[-1] is None
    if found == FINITE:
        for got, given in zip(unscaled, gradients, strict=False):
            assert np.array_equal(got.numpy(), np.array(given, dtype) / 4)


@pytest.mark.parametrize("others", [[], [FINITE], [NAN], [INF], [NAN, INF], [INF, NAN]])
@pytest.mark.parametrize("found", [FINITE, NAN, INF])
def test_ranks_agree_on_inf_before_nan(
    found: int, others: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank sends one number, and all of them get the largest."""
    sent: list[int] = []

    def all_reduce(number: paddle.Tensor, op: Any) -> None:
        assert op == paddle.distributed.ReduceOp.MAX
        sent.append(number.item())
        number.set_value(paddle.to_tensor([max(sent)], dtype="int32"))

    monkeypatch.setattr(ranks, "gradients_differ", lambda: True)
    monkeypatch.setattr(paddle.distributed, "all_reduce", all_reduce)
    agreed = [ranks.agree(each, None) for each in [*others, found]][-1]
    everyone = {found, *others}
    assert agreed == (INF if INF in everyone else NAN if NAN in everyone else FINITE)


def test_inf_in_one_dtype_and_nan_in_another() -> None:
    single, double = paddle.to_tensor([np.nan]), paddle.to_tensor([np.inf], dtype="float64")
    assert scaling.unscale([single, double], 2.0)[1] == INF
    assert scaling.unscale([double, single], 2.0)[1] == INF


def test_unscaling_multiplies_by_the_inverse_and_keeps_the_sign_of_zero() -> None:
    given = np.concatenate([normal(1000), np.array([0.0, -0.0, 1e-45], np.float32)])
    (got,), _ = scaling.unscale([paddle.to_tensor(given)], 3.0)
    expected = given * np.float32(1 / 3)
    assert np.array_equal(got.numpy().view(np.uint32), expected.view(np.uint32))


def test_unscaling_that_overflows() -> None:
    """Gradients of 1e38 under a scale of 2**-10 are 1e41 in truth."""
    (_,), found = scaling.unscale([paddle.to_tensor([1e38])], 2.0**-10)
    assert found == INF


def test_clip_counts_sparse_rows_by_their_sum() -> None:
    table = paddle.nn.Embedding(5, 2, sparse=True)
    (table(paddle.to_tensor([1, 3, 3])) * 3.0).sum().backward()
    dense = np.array([[0, 0], [3, 3], [0, 0], [6, 6], [0, 0]], np.float32)
    other = normal(4)
    norm = np.sqrt((dense**2).sum() + (other.astype("f8") ** 2).sum())
    (sparse, clipped, nothing), got = scaling.clip(
        [table.weight.grad, paddle.to_tensor(other), None], 1.0
    )
    assert got.item() == pytest.approx(norm, rel=1e-6)
    assert np.allclose(clipped.numpy(), other / norm, rtol=1e-5)
    rows, values = sparse.rows(), sparse._get_tensor_from_selected_rows().numpy()
    assert np.allclose(values, dense[rows] / norm, rtol=1e-5)
    assert nothing is None


@pytest.mark.parametrize("call", ["unscale", "step", "minimize"])
def test_float16_parameters_are_for_optimizers_that_have_masters(call: str) -> None:
    """Paddle makes them itself, where it was asked to."""
    p, scaler = parameter(1.0, dtype="float16"), scaled(amp.GradScaler(8.0))
    give(p, 4.0)
    arguments = [None] if call == "minimize" else []
    with pytest.raises(amp.ArgumentError, match=r"1 of the 1 .* float16, without float32 masters"):
        getattr(scaler, call)(optimizer(p), *arguments)
    with_masters = paddle.optimizer.SGD(1.0, parameters=[p], multi_precision=True)
    scaler.unscale(with_masters)
    assert p.grad.tolist() == [0.5]


def test_stored_gradients_of_16_bits_are_float32_from_then_on() -> None:
    """So that what is unscaled and clipped is what steps. Others are the tensors that there are."""
    layer, table = paddle.nn.Linear(3, 2), paddle.nn.Embedding(5, 2, sparse=True)
    low = paddle.base.framework.EagerParamBase.from_tensor(paddle.ones([2], "bfloat16"))
    layer.weight.grad = paddle.ones([3, 2])
    low.grad = paddle.to_tensor([0.5, 3.0]).astype("bfloat16")
    table(paddle.to_tensor([1, 3])).sum().backward()
    parameters = [layer.weight, layer.bias, low, table.weight]
    place = layer.weight.grad.data_ptr()
    stored = stored_gradients(paddle.optimizer.SGD(0.1, parameters=parameters))
    assert [None if grad is None else grad.dtype for grad in stored] == [
        paddle.float32,
        None,
        paddle.float32,
        paddle.float32,
    ]
    assert low.grad.dtype == paddle.float32
    assert stored[2].data_ptr() == low.grad.data_ptr()
    assert low.grad.tolist() == [0.5, 3.0]
    assert stored[0].data_ptr() == layer.weight.grad.data_ptr() == place
    assert stored[3].is_selected_rows()


def test_gradients_that_are_not_cleared_are_hinted_at() -> None:
    """An overflow stays, and inf - inf is NaN in all steps after it. A step of ours keeps none."""
    weight, cure = parameter(1.0), r"clear_grad\(\)\), or an inf stays in \.grad; else look for 0/0"
    sgd, scaler = optimizer(weight), amp.GradScaler(2.0**20)

    def iterate(number: int) -> bool:
        scaler.scale((weight * (-1.0) ** number * 1e38).sum()).backward()
        applied = scaler.step(sgd)
        scaler.update()
        return applied

    with pytest.warns(amp.AmpBridgeWarning, match=cure):
        assert not any(map(iterate, range(9)))
    model = paddle.nn.Linear(2, 1)
    step = amp.train_step(
        lambda model, x: model(x).sum() * np.nan, model, optimizer(*model.parameters())
    )
    with pytest.warns(amp.AmpBridgeWarning, match="Hint: look for 0/0"):
        assert [step(normal(2, 2)).applied for _ in range(8)] == [False] * 8
