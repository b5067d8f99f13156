"""O2 where parameters really are 16-bit: the way back, the optimizer's own clipping, loading."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from kept_masters import policy as masters_policy
from paddle import nn
from paddle.nn import functional as F
from paddle_reference import LOW, normal, rounded

import ampbridge as amp
import ampbridge_paddle

LOW_DTYPES = pytest.mark.parametrize("dtype", LOW)


class Gated(nn.Layer):
    """Has a parameter of its own, beside one in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = self.create_parameter([4])
        self.scale = self.create_parameter([4], dtype="float64")
        self.scale.stop_gradient = True

    def forward(self, x: Any) -> Any:
        return x * self.gate * self.scale.astype(x.dtype)


# Convolutions and Softmax2D have None as their dtype.
LAYERS: dict[str, tuple[Callable[[], nn.Layer], Sequence[int]]] = {
    "Conv1D": (lambda: nn.Conv1D(4, 3, 3), (2, 4, 8)),
    "Conv2D": (lambda: nn.Conv2D(4, 6, 3, groups=2), (2, 4, 8, 8)),
    "Conv3D": (lambda: nn.Conv3D(2, 3, 2), (1, 2, 4, 4, 4)),
    "Conv2DTranspose": (lambda: nn.Conv2DTranspose(4, 3, 3), (2, 4, 5, 5)),
    "Softmax2D": (lambda: nn.Sequential(nn.Conv2D(4, 3, 1), nn.Softmax2D()), (2, 4, 5, 5)),
    "LSTM": (lambda: _First(nn.LSTM(4, 3)), (2, 5, 4)),
    "MultiHeadAttention": (lambda: nn.MultiHeadAttention(4, 2), (2, 5, 4)),
    "PReLU": (lambda: nn.Sequential(nn.Linear(4, 4), nn.PReLU()), (2, 4)),
    "BatchNorm2D": (lambda: nn.Sequential(nn.Conv2D(4, 4, 1), nn.BatchNorm2D(4)), (2, 4, 5, 5)),
    "Gated": (lambda: nn.Sequential(nn.Linear(4, 4), Gated()), (2, 4)),
}


class _First(nn.Layer):
    def __init__(self, inner: nn.Layer) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x)[0]


def mean_square(model: nn.Layer, x: Any) -> Any:
    return (model(x).astype("float32") ** 2).mean()


def told(model: nn.Layer) -> list[Any]:
    """Dtypes, of tensors and those that layers name, and whether Paddle's O2 may cast a layer."""
    layers = model.sublayers(include_self=True)
    of_layers = [(layer._dtype, layer._cast_to_low_precision) for layer in layers]
    return [of_layers, {name: value.dtype for name, value in model.state_dict().items()}]


@LOW_DTYPES
@pytest.mark.parametrize("kind", LAYERS)
def test_undecorated_layers_have_their_masters(kind: str, dtype: str) -> None:
    build, shape = LAYERS[kind]
    model = build()
    adam = paddle.optimizer.Adam(2.0**-6, parameters=model.parameters())
    before, x = told(model), normal(*shape)
    scaler = amp.GradScaler(64.0) if dtype == "float16" else None
    step = amp.train_step(mean_square, model, adam, policy=amp.Policy("O2", dtype), scaler=scaler)
    assert step(x).applied
    low = [p for p in model.parameters() if str(p.dtype) == f"paddle.{dtype}"]
    masters = {p.name: adam._master_weights[p.name].numpy() for p in low}
    assert low
    with amp.undecorated(model, adam):
        assert told(model) == before
        assert all(np.array_equal(p.numpy(), masters[p.name]) for p in low)
        assert any(not np.array_equal(m, rounded(m, dtype)) for m in masters.values())
    assert step(x).applied
    amp.undecorate(model, adam)
    assert told(model) == before
    assert adam._master_weights == {}


def test_undecorate_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2D(1, 2, 1), nn.Linear(3, 3))
    exact = [p.numpy() for p in model.parameters()]
    amp.decorate(model, policy="O2")
    with monkeypatch.context() as patched:
        patched.setattr(nn, "ParameterList", None)
        with pytest.raises(TypeError):
            amp.undecorate(model)
    amp.undecorate(model)
    assert all(np.array_equal(p.numpy(), e) for p, e in zip(model.parameters(), exact, strict=True))
    assert type(model) is nn.Sequential


def test_a_layer_that_paddle_was_told_to_keep_is_not_set_back() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1]._cast_to_low_precision = False
    sgd = paddle.optimizer.SGD(0.5, parameters=model.parameters())
    step = amp.train_step(mean_square, model, sgd, policy="O2:bfloat16")
    step(normal(2, 4))
    assert model[1].weight.dtype == paddle.float32
    trained = model[1].weight.numpy()
    amp.undecorate(model, sgd)
    assert np.array_equal(model[1].weight.numpy(), trained)


# -- the optimizer's own grad_clip


def regression(optimizer: Callable[..., Any], policy: str, **settings: Any) -> list[float]:
    """Losses whose gradients are finite in float16, and the squares of them are not."""
    paddle.seed(0)
    model = nn.Linear(16, 4)
    native = optimizer(2.0**-6, parameters=model.parameters(), **settings)

    def loss_fn(model: nn.Layer, x: Any, y: Any) -> Any:
        return 256 * F.mse_loss(model(x).astype("float32"), y)

    scaler = amp.GradScaler(16.0) if policy == "O2" else None
    step = amp.train_step(loss_fn, model, native, policy=policy, scaler=scaler)
    x, y = normal(64, 16), normal(64, 4, seed=1)
    results = [step(x, y) for _ in range(12)]
    assert all(result.applied for result in results)
    return [result.loss for result in results]


CLIPS = {
    "global": nn.ClipGradByGlobalNorm(1.0),
    "each": nn.ClipGradByNorm(1.0),
    "value": nn.ClipGradByValue(0.5),
}


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("policy", ["O2", "O2:bfloat16"])
@pytest.mark.parametrize("kind", ["SGD", "Momentum", "Adam", "Adagrad", "NAdam"])
def test_the_optimizer_clips_float32_gradients(kind: str, policy: str, clip: str) -> None:
    optimizer = getattr(paddle.optimizer, kind)
    settings = {"grad_clip": CLIPS[clip], "weight_decay": 2.0**-5}
    exact = regression(optimizer, "O0", **settings)
    found = regression(optimizer, policy, **settings)
    assert exact[-1] < 0.97 * exact[0]
    assert found == pytest.approx(exact, rel=4e-3)


@pytest.mark.parametrize("master_grad", [False, True])
def test_also_in_a_loop_by_hand(master_grad: bool) -> None:
    model = nn.Linear(16, 4)
    clip = nn.ClipGradByGlobalNorm(1.0)
    groups = [{"params": [p], "grad_clip": clip} for p in model.parameters()]
    momentum = paddle.optimizer.Momentum(2.0**-4, parameters=groups)
    amp.decorate(model, momentum, "O2", master_grad=master_grad)
    scaler, losses = amp.GradScaler(16.0), []
    x, y = paddle.to_tensor(normal(64, 16)), paddle.to_tensor(normal(64, 4, seed=1))
    for _ in range(12):
        with amp.autocast("O2"):
            loss = 256 * F.mse_loss(model(x).astype("float32"), y)
        scaler.scale(loss).backward()
        assert model.weight.grad.dtype == (paddle.float32 if master_grad else paddle.float16)
        assert scaler.step(momentum)
        scaler.update()
        momentum.clear_grad()
        losses.append(float(loss))
    assert losses[-1] < 0.8 * losses[0]
    amp.undecorate(model, momentum)


# -- loading


def network() -> nn.Layer:
    paddle.seed(3)
    return nn.Sequential(nn.Conv1D(1, 4, 3), nn.Flatten(), nn.LayerNorm(40), nn.Linear(40, 4))


X, LABELS = normal(16, 1, 12), (np.arange(16) % 4).reshape(-1, 1)


def prepared(policy: str | amp.Policy) -> paddle.Model:
    net = network()
    model = paddle.Model(net)
    adam = paddle.optimizer.AdamW(2.0**-6, parameters=net.parameters())
    ampbridge_paddle.prepare(model, adam, nn.CrossEntropyLoss(), policy=policy)
    return model


def losses(model: paddle.Model, count: int = 3) -> list[float]:
    return [float(np.ravel(model.train_batch([X], [LABELS])[0])[0]) for _ in range(count)]


@pytest.mark.parametrize(
    "policy", ["O1", "O2", "O2:bfloat16", *map(masters_policy, ("kahan", "stochastic"))], ids=str
)
def test_a_saved_paddle_model_goes_on_where_it_was(
    policy: str | amp.Policy, tmp_path: Path
) -> None:
    model, path = prepared(policy), str(tmp_path / "checkpoint")
    losses(model)
    model.save(path)
    first = losses(model)
    model.load(path)
    assert losses(model) == first


@pytest.mark.parametrize("policy", ["O2", "O2:bfloat16"])
def test_weights_alone_are_not_undone_by_the_next_step(policy: str, tmp_path: Path) -> None:
    """Saved in float32, and loaded without the optimizer's state, whose masters were others."""
    path = str(tmp_path / "checkpoint")
    trained = prepared("O0")
    losses(trained, 8)
    trained.save(path)
    model = prepared(policy)
    losses(model)
    model.load(path, reset_optimizer=True)
    (first, *_), (expected, *_) = losses(model), losses(trained)
    assert first == pytest.approx(expected, rel=2e-2)
    masters = model._optimizer._master_weights
    weight, exact = model.network[3].weight, trained.network[3].weight.numpy()
    assert np.abs(masters[weight.name].numpy() - exact).max() < 2.0**-4  # of a few steps


@pytest.mark.parametrize(
    "policy", [*(amp.Policy("O2", dtype) for dtype in LOW), masters_policy("kahan")], ids=str
)
def test_set_state_dict_sets_masters(policy: amp.Policy) -> None:
    model, source = network(), network()
    for p in source.parameters():
        p.set_value(normal(*p.shape, seed=5))
    sgd = paddle.optimizer.SGD(0.0, parameters=model.parameters())
    amp.decorate(model, sgd, policy)
    low = {name: rounded(p.numpy(), policy.dtype) * 3 for name, p in source.state_dict().items()}
    low = {name: rounded(value, policy.dtype) for name, value in low.items()}
    model.set_state_dict(
        {name: paddle.to_tensor(value).astype(policy.dtype) for name, value in low.items()}
    )
    for name, value in amp.backend("paddle").read_weights(model).items():
        assert np.array_equal(value, low[name])
    model.set_state_dict({name: p.numpy() for name, p in source.state_dict().items()})
    amp.decorate(source, policy=policy.replace(masters="float32"))
    model.set_state_dict(source.state_dict())  # rounded, which the masters round to already
    amp.undecorate(model, sgd)
    amp.undecorate(source)
    for ours, theirs in zip(model.parameters(), source.parameters(), strict=True):
        assert np.array_equal(ours.numpy(), theirs.numpy())
