"""Gradients under O1 against float64, and training steps that are applied, skipped and shared.

The workloads have smooth activations. Beside its kink a ReLU may open in float16 and stay shut in
float64; its gradient is then off by all of it, whoever casts: 2 % of the whole, where rounding
alone makes 0.06 %. ReLUs are tested away from their kinks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd
import autograd.numpy as anp
import numpy as np
import pytest

import ampbridge as amp
from ampbridge import GradScaler, Policy
from ampbridge_numpy import nn, optim
from ampbridge_numpy.backend import NumpyBackend

# -- three workloads


class Encoder(nn.Module):
    """A transformer layer over tokens, with a class for each sequence."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.tokens, self.places = nn.Embedding(20, 32, rng=rng), nn.Embedding(12, 32, rng=rng)
        self.attention = nn.MultiHeadAttention(32, 4, rng=rng)
        self.up, self.down = nn.Linear(32, 64, rng=rng), nn.Linear(64, 32, rng=rng)
        self.first, self.second, self.head = (
            nn.LayerNorm(32),
            nn.LayerNorm(32),
            nn.Linear(32, 5, rng=rng),
        )

    def forward(self, indices: np.ndarray) -> Any:
        x = self.tokens(indices) + self.places(np.arange(indices.shape[1]))
        x = x + self.attention(self.first(x), is_causal=True)
        x = x + self.down(nn.gelu(self.up(self.second(x))))
        return self.head(anp.mean(x, axis=1))


def perceptron(rng: np.random.Generator, activation: type[nn.Module] = nn.GELU) -> nn.Module:
    first, second, third = (nn.Linear(i, o, rng=rng) for i, o in ((64, 96), (96, 96), (96, 10)))
    return nn.Sequential(first, activation(), second, activation(), third)


class ConvNet(nn.Module):
    def __init__(self, rng: np.random.Generator) -> None:
        self.first, self.norm = nn.Conv2d(1, 8, 3, padding=1, rng=rng), nn.BatchNorm2d(8)
        self.second, self.head = nn.Conv2d(8, 16, 3, stride=2, rng=rng), nn.Linear(144, 10, rng=rng)

    def forward(self, x: Any) -> Any:
        x = nn.gelu(self.norm(self.first(x)))
        return self.head(nn.flatten(nn.gelu(self.second(x))))


def images(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def integers(high: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(2).integers(0, high, shape)


WORKLOADS: dict[
    str, tuple[Callable[[np.random.Generator], nn.Module], tuple[np.ndarray, np.ndarray]]
] = {
    "perceptron": (perceptron, (images(64, 64), integers(10, 64))),
    "conv net": (ConvNet, (images(32, 1, 8, 8), integers(10, 32))),
    "transformer": (Encoder, (integers(20, 16, 12), integers(5, 16))),
}
every_workload = pytest.mark.parametrize("workload", WORKLOADS)
BOUNDS = {"float16": 5e-3, "bfloat16": 3e-2}


def loss_fn(model: nn.Module, x: np.ndarray, labels: np.ndarray) -> Any:
    return nn.cross_entropy(model(x), labels)


def exact_gradients(model: nn.Module, batch: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    """In float64, by autograd alone."""
    arrays = model.parameters()

    def loss(*doubles: Any) -> Any:
        with nn.substituted({id(a): d for a, d in zip(arrays, doubles, strict=True)}):
            return loss_fn(model, *batch)

    doubles = [a.astype(np.float64) for a in arrays]
    batch = tuple(x.astype(np.float64) if x.dtype == np.float32 else x for x in batch)
    return list(autograd.grad(loss, tuple(range(len(arrays))))(*doubles))


def error(actual: Any, exact: list[np.ndarray]) -> float:
    """The relative error of all gradients as one vector."""
    joint = [np.concatenate([np.ravel(g) for g in grads]) for grads in (actual, exact)]
    return float(np.linalg.norm(joint[0] - joint[1]) / np.linalg.norm(joint[1]))


@every_workload
@pytest.mark.parametrize("dtype", BOUNDS)
def test_gradients_under_O1_are_within_the_low_dtype_s_error(workload: str, dtype: str) -> None:
    make, batch = WORKLOADS[workload]
    model = make(np.random.default_rng(0))
    scaler = GradScaler(2.0**10) if dtype == "float16" else None
    _, grads = amp.value_and_grad(loss_fn, model, *batch, policy=Policy("O1", dtype), scaler=scaler)
    grads = scaler.unscale(grads) if scaler else grads
    measured = error(grads, exact_gradients(model, batch))
    assert 1e-5 < measured < BOUNDS[dtype]


def test_gradients_through_relu_away_from_its_kinks() -> None:
    model, pool = perceptron(np.random.default_rng(0), nn.ReLU), images(512, 64)
    w1, b1, w2, b2, *_ = (p.astype(np.float64) for p in model.parameters())
    first = pool @ w1 + b1
    second = np.maximum(first, 0) @ w2 + b2
    clear = np.minimum(np.abs(first).min(1), np.abs(second).min(1)) > 2e-3
    batch = pool[clear], integers(10, clear.sum())
    assert clear.sum() > 32
    _, grads = amp.value_and_grad(loss_fn, model, *batch, policy="O1")
    assert 1e-5 < error(grads, exact_gradients(model, batch)) < BOUNDS["float16"]


@every_workload
@pytest.mark.parametrize("dtype", BOUNDS)
def test_without_low_products_gradients_are_float32_s(workload: str, dtype: str) -> None:
    """Of the perceptron's ops, linear alone is allowed; of the others also conv2d and attention."""
    make, batch = WORKLOADS[workload]
    others = {
        "perceptron": [],
        "conv net": ["conv2d"],
        "transformer": ["scaled_dot_product_attention"],
    }
    policy = Policy("O1", dtype, deny=["linear", *others[workload]])
    model = make(np.random.default_rng(0))
    _, grads = amp.value_and_grad(loss_fn, model, *batch, policy=policy)
    assert error(grads, exact_gradients(model, batch)) < 1e-5


@every_workload
def test_O0_gradients_are_float32_s(workload: str) -> None:
    make, batch = WORKLOADS[workload]
    model = make(np.random.default_rng(0))
    _, grads = amp.value_and_grad(loss_fn, model, *batch, policy="O0")
    assert [g.dtype for g in grads] == [np.float32] * len(grads)
    assert error(grads, exact_gradients(model, batch)) < 1e-5


@every_workload
@pytest.mark.parametrize("policy", ["O0", "O1", "O1:bfloat16"])
def test_training_brings_the_loss_down(workload: str, policy: str) -> None:
    make, batch = WORKLOADS[workload]
    model = make(np.random.default_rng(0))
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)
    step = amp.train_step(loss_fn, model, optimizer, policy=policy)
    losses = [step(*batch).loss for _ in range(15)]
    assert losses[-1] < 0.7 * losses[0]


# -- skipped steps


def test_real_overflows_follow_the_rule_worked_by_hand() -> None:
    """At 2**24 the loss's gradient is beyond float16; the scale halves until it fits, then grows.

    With logits of 0, the gradient of a logit is at most scale * (1 - 1/10) / 64 (64 the batch).
    It stays under 65504 from scale 2**22 on, times the largest hidden value for the last weights'.
    """
    make, batch = WORKLOADS["perceptron"]
    model = make(np.random.default_rng(0))
    for p in model.parameters()[-2:]:
        p[...] = 0
    scaler = GradScaler(2.0**24, growth_interval=3)
    step = amp.train_step(
        loss_fn, model, optim.SGD(model.parameters(), lr=0.0), policy="O1", scaler=scaler
    )
    seen = [(r.scale, r.applied) for r in (step(*batch) for _ in range(9))]
    skipped = next(i for i, (_, applied) in enumerate(seen) if applied)
    assert skipped >= 2  # 2**24 and 2**23 are beyond it
    fits = 2.0 ** (24 - skipped)
    expected = [(2.0 ** (24 - i), False) for i in range(skipped)]
    expected += [(fits, True)] * 3 + [(2 * fits, False)] + [(fits, True)] * 3 + [(2 * fits, False)]
    assert seen == expected[:9]


# -- accumulation and clipping


def test_accumulated_micro_batches_are_one_big_batch_in_low_precision() -> None:
    make, (x, labels) = WORKLOADS["perceptron"]
    models = [make(np.random.default_rng(0)) for _ in range(2)]
    optimizers = [optim.SGD(m.parameters(), lr=0.5) for m in models]
    whole = amp.train_step(loss_fn, models[0], optimizers[0], policy="O1:bfloat16")
    parts = amp.train_step(loss_fn, models[1], optimizers[1], policy="O1:bfloat16", accumulate=4)
    start = [p.copy() for p in models[0].parameters()]
    whole(x, labels)
    for i in range(4):
        parts(x[16 * i : 16 * i + 16], labels[16 * i : 16 * i + 16])
    moved = [[p - s for p, s in zip(m.parameters(), start, strict=True)] for m in models]
    assert error(moved[1], moved[0]) < 1e-2


def test_overflows_of_either_sign_in_one_accumulation_are_skipped_without_a_word() -> None:
    """Their sum is inf - inf, of which NumPy warns by itself."""
    make, (x, labels) = WORKLOADS["perceptron"]
    model = make(np.random.default_rng(0))

    def signed_loss(model: Any, x: Any, labels: Any, sign: float) -> Any:
        return loss_fn(model, x, labels) * sign

    optimizer = optim.SGD(model.parameters(), lr=0.5)
    step = amp.train_step(
        signed_loss, model, optimizer, policy="O1", scaler=GradScaler(2.0**24), accumulate=2
    )
    step(x, labels, np.float32(1.0))
    assert step(x, labels, np.float32(-1.0)).reason == "nan"


def test_short_gradients_are_not_clipped() -> None:
    gradient = np.float32([3, 4])
    (result,), norm = NumpyBackend().clip([gradient], 5.0)
    assert (result.tolist(), norm) == ([3.0, 4.0], 5.0)


def test_a_norm_that_is_almost_zero_is_divided_by_as_in_torch() -> None:
    """torch: ``max_norm / (norm + 1e-6)``."""
    (result,), _ = NumpyBackend().clip([np.float32([3e-6])], 1e-6)
    np.testing.assert_allclose(result, [0.75e-6], rtol=1e-3)


def test_the_norm_of_large_gradients_does_not_overflow() -> None:
    (result,), norm = NumpyBackend().clip([np.float32([3e30, 4e30])], 1.0)
    assert norm == pytest.approx(5e30)
    np.testing.assert_allclose(result, [0.6, 0.8], rtol=1e-6)


# -- unscaling


def test_what_overflows_as_it_is_unscaled_is_found() -> None:
    """It is finite, and beyond float32 once it has been divided by the scale, 1/8."""
    with np.errstate(over="ignore"):
        _, found = NumpyBackend().unscale([np.float32([1e38]), np.float32([2.0])], 0.125)
    assert (found, type(found)) == (1, int)


def test_unscaling_widens_and_never_divides_twice() -> None:
    shared = np.array([8.0], np.float16)
    (first, second), _ = NumpyBackend().unscale([shared, shared], 4.0)
    assert (first.tolist(), second.tolist(), first.dtype) == ([2.0], [2.0], np.float32)


# -- what the loop hands over


def test_a_float64_model_gets_its_batch_as_it_is() -> None:
    class Double(nn.Module):
        def __init__(self) -> None:
            self.weight = nn.Parameter(np.ones(3))

    def loss(model: nn.Module, x: np.ndarray) -> Any:
        return (model.weight * x).sum()

    x = np.array([1.0, 2.0, 1 + 2.0**-40])
    _, grads = amp.value_and_grad(loss, Double(), x, policy="O1")
    assert grads[0].tolist() == x.tolist()


def test_aux_comes_back_without_its_trace() -> None:
    def loss(model: nn.Module, x: np.ndarray) -> Any:
        logits = model(x)
        return logits.sum(), {"logits": logits, "pair": (logits, "text"), "mean": logits.mean()}

    (_, aux), _ = amp.value_and_grad(
        loss, nn.Linear(2, 2), np.ones((1, 2), np.float32), policy="O1"
    )
    assert type(aux["logits"]) is type(aux["pair"][0]) is np.ndarray
    assert aux["logits"].dtype == np.float32
    assert float(aux["mean"]) == pytest.approx(float(aux["logits"].mean()), rel=1e-3)


def test_a_gradient_goes_to_its_own_parameter_in_any_order() -> None:
    model = nn.Linear(1, 1)
    weight, bias = model.parameters()
    weight[...], bias[...] = 0, 0
    optimizer = optim.SGD([bias, weight], lr=1.0)
    NumpyBackend().step(optimizer, [weight, bias], [np.float32([[1]]), np.float32([2])])
    assert (weight.item(), bias.item()) == (-1.0, -2.0)


def test_an_optimizer_may_hold_some_of_the_parameters() -> None:
    model = nn.Linear(2, 1, rng=0)
    before = model.weight.copy()
    optimizer = optim.SGD([model.bias], lr=1.0)
    step = amp.train_step(lambda m, x: m(x).sum(), model, optimizer, policy="O0")
    bias = model.bias.copy()
    assert step(np.ones((1, 2), np.float32)).applied
    assert (model.weight == before).all()
    assert model.bias.tolist() == (bias - 1).tolist()


def test_scaling_inside_of_a_function_of_one_s_own() -> None:
    """``scaler.scale`` on a traced loss; ``autograd`` takes the gradients."""
    model, x = nn.Linear(3, 1, rng=0), np.ones((2, 3), np.float32)
    scaler, optimizer = GradScaler(1024.0), optim.SGD(model.parameters(), lr=1.0)
    arrays = model.parameters()

    def scaled(*boxes: Any) -> Any:
        with nn.substituted({id(a): b for a, b in zip(arrays, boxes, strict=True)}):
            with amp.autocast("O1", backend="numpy"):
                loss = model(x).sum()
            return scaler.scale(loss)

    grads = autograd.grad(scaled, (0, 1))(*arrays)
    assert grads[1].tolist() == [2048.0]
    before = model.bias.copy()
    assert scaler.step(optimizer, list(grads))
    scaler.update()
    assert model.bias.tolist() == (before - 2).tolist()
