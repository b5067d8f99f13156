"""What the optimizer holds beside the model, held against loops by hand."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from fleet_objects import Wrapper
from paddle import nn
from paddle.quantization import QAT, QuantConfig
from paddle.quantization.quanters import FakeQuanterWithAbsMaxObserver
from paddle_reference import bits, normal
from written_loops import Way, losses_of

import ampbridge as amp

X, LABELS = normal(16, 12), np.arange(16) % 4


class CenterLoss(nn.Layer):
    """Wen et al. 2016: a centre for each class, drawn to its features."""

    def __init__(self) -> None:
        super().__init__()
        self.centers = self.create_parameter([4, 8])

    def forward(self, features: Any, labels: Any) -> Any:
        distances = ((features - F.embedding(labels, self.centers)) ** 2).sum(-1).mean()
        return F.cross_entropy(features, labels) + 0.1 * distances


def made() -> tuple[nn.Layer, CenterLoss, Any]:
    paddle.seed(0)
    model, criterion = nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 8)), CenterLoss()
    parameters = [*model.parameters(), *criterion.parameters()]
    return model, criterion, paddle.optimizer.AdamW(0.01, parameters=parameters)


def values(*layers: nn.Layer) -> list[np.ndarray]:
    return [np.array(p.numpy()) for layer in layers for p in layer.parameters()]


def test_a_criterion_s_weights_are_trained_as_by_a_plain_loop() -> None:
    model, criterion, optimizer = made()
    for _ in range(4):
        criterion(model(paddle.to_tensor(X)), paddle.to_tensor(LABELS)).backward()
        optimizer.step()
        optimizer.clear_grad()
    expected = values(model, criterion)

    model, criterion, optimizer = made()
    step = amp.train_step(lambda m, x, y: criterion(m(x), y), model, optimizer, policy="O0")
    for _ in range(4):
        step(X, LABELS)
    for actual, wanted in zip(values(model, criterion), expected, strict=True):
        assert bits(paddle.to_tensor(actual)) == bits(paddle.to_tensor(wanted))


@pytest.mark.parametrize("policy", ["O1:bfloat16", "O2:bfloat16"])
@pytest.mark.parametrize("compile", [False, True])
def test_they_move_at_every_level(policy: str, compile: bool) -> None:
    model, criterion, optimizer = made()

    def loss_fn(m: nn.Layer, x: Any, *, labels: Any) -> Any:
        return criterion(m(x), labels)

    before = values(criterion)[0]
    step = amp.train_step(loss_fn, model, optimizer, policy=policy, compile=compile)
    losses = [step(X, labels=LABELS).loss for _ in range(10)]
    assert losses[-1] < losses[0]
    assert criterion.centers.dtype == paddle.float32
    assert (values(criterion)[0] != before).any()


def mean_squared_error(model: Any, x: Any, y: Any) -> Any:
    return F.mse_loss(model(x), y)


REFUSED = {
    "a high-level model": (
        lambda m, o: (mean_squared_error, paddle.Model(m), o),
        r"not paddle\.hapi\.model\.Model\.\nHint: model = model\.network",
    ),
    "a scheduler": (
        lambda m, o: (mean_squared_error, m, paddle.optimizer.lr.StepDecay(0.1, 1)),
        r"not a scheduler \(paddle\.optimizer\.lr\.StepDecay\)",
    ),
    "a loss layer": (lambda m, o: (nn.MSELoss(), m, o), r"return criterion\(model\(x\), y\)"),
    "another model's optimizer": (
        lambda m, o: (mean_squared_error, nn.Linear(2, 2), o),
        "holds none of the model's parameters",
    ),
    "LBFGS": (
        lambda m, o: (mean_squared_error, m, paddle.optimizer.LBFGS(parameters=m.parameters())),
        "LBFGS evaluates the loss several times a step",
    ),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_mistakes_are_refused_when_the_step_is_made(mistake: str) -> None:
    make, text = REFUSED[mistake]
    model = nn.Linear(4, 2)
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    with pytest.raises(amp.AmpBridgeError, match=text):
        amp.train_step(*make(model, optimizer))


def test_a_plateau_scheduler_is_refused_when_the_step_is_made() -> None:
    scheduler = paddle.optimizer.lr.ReduceOnPlateau(0.1)
    model = nn.Linear(4, 2)
    optimizer = paddle.optimizer.SGD(scheduler, parameters=model.parameters())
    with pytest.raises(amp.ArgumentTypeError, match="ReduceOnPlateau needs metrics"):
        amp.train_step(mean_squared_error, model, optimizer, scheduler=scheduler)


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_scheduler_that_the_loop_moves_too_is_warned_of(by_hand: bool) -> None:
    rates = paddle.optimizer.lr
    scheduler = rates.LinearWarmup(rates.StepDecay(0.1, 3), 5, 0.0, 0.1)
    model = nn.Linear(4, 2)
    optimizer = paddle.optimizer.SGD(scheduler, parameters=model.parameters())
    step = amp.train_step(
        lambda m, x: m(x).sum(), model, optimizer, policy="O0", scheduler=scheduler
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", amp.AmpBridgeWarning)
        for _ in range(5):
            step(paddle.ones([2, 4]))
            if by_hand:
                scheduler.step()
    assert len([each for each in caught if "moves twice" in str(each.message)]) == by_hand


def test_a_scheduler_of_another_optimizer_is_refused() -> None:
    """Also one within the optimizer's, which advances it."""
    model = nn.Linear(4, 2)
    inner = paddle.optimizer.lr.StepDecay(0.1, 3)
    scheduler = paddle.optimizer.lr.LinearWarmup(inner, 5, 0.0, 0.1)
    optimizer = paddle.optimizer.Momentum(scheduler, parameters=model.parameters())
    other = paddle.optimizer.lr.StepDecay(0.1, 3)
    for wrong in (inner, other):
        with pytest.raises(amp.ArgumentError) as caught:
            amp.train_step(mean_squared_error, model, optimizer, scheduler=wrong)
        assert str(caught.value).splitlines() == [
            "paddle.optimizer.lr.StepDecay moves the learning rates of another optimizer than the "
            "step's.",
            "Hint: optimizer = Momentum(learning_rate=scheduler, ...)",
        ]
    step = amp.train_step(mean_squared_error, model, Wrapper(optimizer), scheduler=scheduler)
    assert step.optimizer.get_lr() == 0.0


@pytest.mark.parametrize("policy", ["O0", "O1", "O1:bfloat16", "O2", "O2:bfloat16"])
def test_a_loss_that_calls_backward_is_refused(policy: str) -> None:
    """As a loop by hand has it. Paddle would read the graph that is gone, and end the process."""

    def loss_fn(model: Any, x: Any) -> Any:
        loss = model(x).square().mean()
        loss.backward()
        return loss

    model = nn.Linear(12, 4)
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    step = amp.train_step(loss_fn, model, optimizer, policy=policy, compile=False)
    with pytest.raises(amp.errors.CallOrderError, match=r"(?s)called loss\.backward\(\).*Hint: "):
        step(paddle.to_tensor(X))


def test_a_step_where_nothing_is_recorded_is_told_of_the_block() -> None:
    model = nn.Linear(4, 2)
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    step = amp.train_step(lambda m, x: m(x).sum(), model, optimizer, policy="O0")
    with pytest.raises(amp.ArgumentError, match=r"(?s)inside of paddle\.no_grad.*Hint: end"):  # noqa: SIM117
        with paddle.no_grad():
            step(paddle.ones([2, 4]))
    assert step(paddle.ones([2, 4])).applied


def quantized() -> tuple[Any, Any]:
    """Of Paddle's own: its quantizers keep statistics in frozen parameters, and write to them."""
    paddle.seed(0)
    quantizer = FakeQuanterWithAbsMaxObserver(moving_rate=0.9)
    config = QuantConfig(activation=None, weight=None)
    config.add_type_config(paddle.nn.Linear, activation=quantizer, weight=quantizer)
    model = paddle.nn.Sequential(paddle.nn.Linear(4, 8), paddle.nn.ReLU(), paddle.nn.Linear(8, 2))
    model = QAT(config).quantize(model)
    model.train()
    return model, paddle.optimizer.SGD(0.1, parameters=model.parameters())


def quantized_loss(model: Any, x: Any) -> Any:
    return (model(x) ** 2).mean()


@pytest.mark.parametrize("way", ["by hand", "train_step"])
def test_statistics_that_the_model_writes_to_are_not_trained(way: Way) -> None:
    """From its first call on they ask for gradients. Paddle's own loop steps over them."""
    x = paddle.to_tensor(np.linspace(-1, 1, 32, dtype="float32").reshape(8, 4))

    def found(way: Way) -> list[float]:
        model, optimizer = quantized()
        return [*losses_of(way, quantized_loss, model, optimizer, optimizer.clear_grad, x)]

    assert found(way) == found("native")


class WithStatistic(nn.Layer):
    """A running maximum in a frozen parameter, as quantizers hold it; those have no 16-bit kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.inner = nn.Linear(4, 2), nn.Layer()
        self.inner.peak = self.inner.create_parameter([1])
        self.inner.peak.stop_gradient = True

    def forward(self, x: Any) -> Any:
        y, peak = self.linear(x), self.inner.peak
        paddle.assign((0.9 * peak + 0.1 * y.abs().max()).astype(peak.dtype), output=peak)
        return y


def test_statistics_in_low_parameters_are_warned_of_once() -> None:
    found = []
    for keep in ((), ("inner",)):
        model = WithStatistic()
        optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
        policy = amp.Policy("O2", "bfloat16", keep=keep)
        step = amp.train_step(lambda m, x: (m(x) ** 2).mean(), model, optimizer, policy=policy)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", amp.AmpBridgeWarning)
            warnings.simplefilter("ignore", amp.SimulationWarning)
            for _ in range(5):
                step(np.ones((8, 4), np.float32))
        found.append([str(each.message) for each in said])
    plain, kept = found
    assert len(plain) == 1
    assert "inner.peak" in plain[0]
    assert "keep=['inner']" in plain[0]
    assert kept == []
