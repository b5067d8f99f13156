"""``paddle.Model``: fit, train_batch, evaluate, predict, save and load under O1 and O2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn
from paddle_reference import is_representable, normal

import ampbridge as amp
import ampbridge_paddle
from ampbridge_paddle.autocast import simulation

X, LABELS = normal(48, 12), (np.arange(48) % 4).reshape(-1, 1)
BATCH = 8

# Paddle copies tensors with to_tensor() in evaluate and predict, and warns itself of it.
pytestmark = pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning")

every_level = pytest.mark.parametrize("level", ["O1", "O2"])


class Digits(paddle.io.Dataset):
    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return X[index], LABELS[index]


def network() -> nn.Layer:
    paddle.seed(3)
    return nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))


def momentum(model: nn.Layer, rate: Any = 0.05) -> paddle.optimizer.Optimizer:
    return paddle.optimizer.Momentum(rate, 0.9, parameters=model.parameters())


def prepared(policy: Any, scaler: Any = "auto", rate: Any = 0.05, **settings: Any) -> paddle.Model:
    net = network()
    model = paddle.Model(net)
    ampbridge_paddle.prepare(
        model, momentum(net, rate), nn.CrossEntropyLoss(), policy=policy, scaler=scaler, **settings
    )
    return model


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    return [(X[i : i + BATCH], LABELS[i : i + BATCH]) for i in range(0, len(X), BATCH)]


class Recorder(paddle.callbacks.Callback):
    """What there is to see at the end of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []
        self.scales: list[float] = []

    def on_train_batch_end(self, step: int, logs: Any = None) -> None:
        self.losses.append(float(logs["loss"][0]))
        self.scales.append(self.model._scaler.get_scale() if self.model._scaler else 1.0)


def by_train_step(policy: str, scaler: Any, steps: int) -> tuple[list[amp.StepResult], nn.Layer]:
    def loss_fn(net: nn.Layer, x: Any, labels: Any) -> Any:
        return F.cross_entropy(net(x), labels)

    net = network()
    step = amp.train_step(loss_fn, net, momentum(net), policy=policy, scaler=scaler)
    given = batches()
    return [step(*given[i % len(given)]) for i in range(steps)], net


@pytest.mark.parametrize("policy", ["O1", "O2", "O1:bfloat16", "O2:bfloat16", "O0"])
def test_fit_is_train_step(policy: str) -> None:
    """Losses, scales and weights, with real overflows."""

    def scaler() -> Any:
        needed = amp.Policy.parse(policy).needs_scaling
        return amp.GradScaler(2.0**24, growth_factor=4.0, growth_interval=5) if needed else None

    recorder, model = Recorder(), prepared(policy, scaler())
    model.fit(Digits(), batch_size=BATCH, epochs=4, verbose=0, shuffle=False, callbacks=[recorder])
    results, net = by_train_step(policy, scaler(), 24)
    assert recorder.losses == [result.loss for result in results]
    for ours, theirs in zip(model.network.parameters(), net.parameters(), strict=True):
        assert np.array_equal(ours.numpy(), theirs.numpy())
    if model._scaler is not None:
        assert recorder.scales[:-1] == [result.scale for result in results][1:]
        assert [result.applied for result in results].count(False) > 5


class Poisoned(Digits):
    """Its first batches are NaN."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.examples = batches * BATCH

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        x, label = super().__getitem__(index)
        return (x * np.float32(np.nan) if index < self.examples else x), label


def fit(poisoned: int, settings: dict[str, Any], epochs: int = 1) -> tuple[paddle.Model, Recorder]:
    recorder, model = Recorder(), prepared("O0", amp.GradScaler(8.0, **settings))
    model.fit(
        Poisoned(poisoned), None, BATCH, epochs, verbose=0, shuffle=False, callbacks=[recorder]
    )
    return model, recorder


def test_logs_have_the_scale_and_the_skipped_steps(capsys: pytest.CaptureFixture[str]) -> None:
    """On Paddle's own progress bar, and in the logs of the callbacks behind it."""

    class Logs(paddle.callbacks.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.rows: list[tuple[float, int, int]] = []

        def on_train_batch_end(self, step: int, logs: Any = None) -> None:
            names = ("loss_scale", "skipped_steps", "consecutive_skips")
            self.rows.append(tuple(logs[name] for name in names))

    seen, model = Logs(), prepared("O1", amp.GradScaler(8.0))
    callbacks = [ampbridge_paddle.ScaleLogs(), seen]
    model.fit(
        Poisoned(2), None, BATCH, 2, log_freq=1, verbose=2, shuffle=False, callbacks=callbacks
    )
    assert seen.rows[:4] == [(4.0, 1, 1), (2.0, 2, 2), (2.0, 2, 0), (2.0, 2, 0)]
    assert seen.rows[6:9] == [(1.0, 3, 1), (0.5, 4, 2), (0.5, 4, 0)]  # the second epoch
    printed = capsys.readouterr().out
    assert "loss_scale: 2.0000 - skipped_steps: 2" in printed


def test_logs_count_a_skip_once_where_batches_accumulate() -> None:
    model = prepared("O1", amp.GradScaler(8.0))
    logs: dict[str, Any] = {}

    class Last(paddle.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, step: int, values: Any = None) -> None:
            logs.update(values)

    callbacks = [ampbridge_paddle.ScaleLogs(), Last()]
    model.fit(
        Poisoned(1),
        None,
        BATCH,
        1,
        verbose=0,
        shuffle=False,
        callbacks=callbacks,
        accumulate_grad_batches=2,
    )
    assert logs["skipped_steps"] == 1


def test_logs_need_a_scaler() -> None:
    with pytest.raises(amp.ArgumentTypeError, match=r"without an ampbridge\.GradScaler"):
        prepared("O1:bfloat16").fit(
            Digits(), batch_size=BATCH, verbose=0, callbacks=[ampbridge_paddle.ScaleLogs()]
        )


def test_fit_warns_of_skipped_steps_once() -> None:
    with pytest.warns(amp.AmpBridgeWarning, match="2 steps in a row were skipped") as caught:
        fit(2, {"warn_after_skips": 2})
    assert len(caught) == 1


def test_fit_warns_of_nan_once() -> None:
    with pytest.warns(amp.AmpBridgeWarning, match="8 steps in a row had NaN .* no inf") as caught:
        fit(9, {}, epochs=2)
    assert len(caught) == 1


@pytest.mark.parametrize(
    "settings, text",
    [
        ({"max_consecutive_skips": 3}, "3 steps in a row were skipped; the loss scale is 1.0"),
        ({"min_scale": 2.0, "at_min_scale": "raise"}, r"at its minimum, 2\.0"),
    ],
)
def test_fit_stops_where_nothing_is_trained(settings: dict[str, Any], text: str) -> None:
    """At once, since Paddle decides on the host whether to step."""
    with pytest.raises(amp.OverflowStuckError, match=text):
        fit(6, {**settings, "warn_after_skips": None})


@pytest.mark.parametrize("poisoned, scale", [(0, 8.0), (2, 2.0)])
def test_fit_sounds_no_other_alarms(poisoned: int, scale: float) -> None:
    model, recorder = fit(poisoned, {"warn_after_skips": 3, "max_consecutive_skips": 3})
    assert model._scaler.get_scale() == scale
    assert len(recorder.losses) == 6


@every_level
def test_the_scale_follows_the_rule_written_out(level: str) -> None:
    """Overflow is looked for in the gradients, by hand, on the same weights."""
    scaler = amp.GradScaler(2.0**24, growth_factor=8.0, backoff_factor=0.25, growth_interval=2)
    model = prepared(level, scaler)
    scale, good, skips = 2.0**24, 0, 0
    for x, labels in batches() * 3:
        assert scaler.get_scale() == scale
        loss = F.cross_entropy(model.network(paddle.to_tensor(x)), paddle.to_tensor(labels))
        (loss * scale).backward()
        finite = all(np.isfinite(p.grad.numpy()).all() for p in model.network.parameters())
        model.network.clear_gradients()
        model.train_batch([x], [labels])
        good = good + 1 if finite else 0
        skips += not finite
        if not finite:
            scale *= 0.25
        elif good == 2:
            scale, good = scale * 8, 0
    assert 3 < skips < 15


@every_level
@pytest.mark.parametrize("bad", [None, 0, 1])
def test_gradients_are_accumulated(level: str, bad: int | None) -> None:
    """Paddle adds them up, undivided. An overflow in either batch skips the step of both."""
    net = network()
    model = paddle.Model(net)
    factor = [1.0]

    def loss(output: Any, labels: Any) -> Any:
        return F.cross_entropy(output, labels) * factor[0]

    scaler = amp.GradScaler(2.0**8)
    ampbridge_paddle.prepare(
        model,
        paddle.optimizer.SGD(1.0, parameters=net.parameters()),
        loss,
        policy=level,
        scaler=scaler,
    )
    before = [p.numpy() for p in net.parameters()]
    expected = [np.zeros_like(b) for b in before]
    for x, labels in batches()[:2]:
        scaled = F.cross_entropy(net(paddle.to_tensor(x)), paddle.to_tensor(labels)) * 2.0**8
        scaled.backward()
        for total, p in zip(expected, net.parameters(), strict=True):
            total += p.grad.numpy() / 2.0**8
        net.clear_gradients()
    for index, (x, labels) in enumerate(batches()[:2]):
        factor[0] = np.inf if index == bad else 1.0
        model.train_batch([x], [labels], update=index == 1)
    for b, p, g in zip(before, net.parameters(), expected, strict=True):
        assert np.array_equal(p.numpy(), b - g if bad is None else b)
    assert scaler.get_scale() == (2.0**8 if bad is None else 2.0**7)
    assert all(p.grad is None or not p.grad.numpy().any() for p in net.parameters())


@every_level
def test_fit_accumulates_by_itself(level: str) -> None:
    recorder, model = Recorder(), prepared(level, amp.GradScaler(2.0**4, growth_interval=1))
    model.fit(
        Digits(), batch_size=BATCH, verbose=0, shuffle=False,
        accumulate_grad_batches=4, callbacks=[recorder],
    )  # fmt: skip
    # 6 batches: a step after the fourth and after the last.
    assert recorder.scales == [16, 16, 16, 32, 32, 64]


@every_level
def test_evaluate_and_predict_run_in_the_policy_s_precision(level: str) -> None:
    seen = []

    class Watching(nn.Linear):
        def forward(self, x: Any) -> Any:
            y = super().forward(x)
            seen.append(simulation.low_dtype(y))
            return y

    net = nn.Sequential(Watching(12, 4))
    model = paddle.Model(net)
    ampbridge_paddle.prepare(
        model, momentum(net), nn.CrossEntropyLoss(), paddle.metric.Accuracy(), policy=level
    )
    evaluated = model.evaluate(Digits(), batch_size=48, verbose=0)
    outputs = model.predict(Digits(), batch_size=48, verbose=0)[0][0]
    assert seen == ["float16", "float16"]
    assert outputs.dtype == np.float32
    assert is_representable(outputs, "float16")
    logits = outputs.astype("f8")
    log_sums = np.log(np.exp(logits).sum(axis=1))
    expected = (log_sums - logits[np.arange(48), LABELS[:, 0]]).mean()
    assert evaluated["loss"][0] == pytest.approx(expected, rel=1e-5)
    assert evaluated["acc"] == (logits.argmax(axis=1) == LABELS[:, 0]).mean()


def test_metrics_callbacks_and_a_rate_s_schedule() -> None:
    schedule = paddle.optimizer.lr.StepDecay(0.05, 3, gamma=0.5)
    net = network()
    model = paddle.Model(net)
    ampbridge_paddle.prepare(
        model, momentum(net, schedule), nn.CrossEntropyLoss(),
        [paddle.metric.Accuracy(), paddle.metric.Accuracy(topk=(1, 2), name="top")], policy="O2",
    )  # fmt: skip
    x, labels = batches()[0]
    losses, metrics = model.train_batch([x], [labels])
    assert (len(losses), len(metrics)) == (1, 2)
    rates: list[float] = []

    class Watching(paddle.callbacks.Callback):
        def on_train_batch_end(self, step: int, logs: Any = None) -> None:
            rates.append(self.model._optimizer.get_lr())
            assert {"acc", "top_top1", "top_top2", "loss"} <= set(logs)

    stop = paddle.callbacks.EarlyStopping("loss", patience=0, verbose=0, save_best_model=False)
    model.fit(Digits(), Digits(), batch_size=BATCH, verbose=0, callbacks=[Watching(), stop])
    assert rates == [0.05] * 3 + [0.025] * 3


@every_level
def test_save_and_load_go_on_where_it_was(level: str, tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")

    model = prepared(level, amp.GradScaler(2.0**20, growth_interval=3))
    given = batches()
    for x, labels in given:
        model.train_batch([x], [labels])
    model.save(path)
    first = [model.train_batch([x], [labels])[0].item() for x, labels in given * 2]
    went_to = model._scaler.state_dict()
    model.load(path)
    assert model._scaler.state_dict() != went_to
    again = [model.train_batch([x], [labels])[0].item() for x, labels in given * 2]
    assert again == first
    assert model._scaler.state_dict() == went_to
    exact = paddle.load(path + ".pdparams")
    assert {str(v.dtype) for v in exact.values()} == {"paddle.float32"}


def test_O0_takes_it_back() -> None:
    net = network()
    model, optimizer = paddle.Model(net), momentum(net)
    ampbridge_paddle.prepare(model, optimizer, nn.CrossEntropyLoss(), policy="O2")
    assert type(net) is not nn.Sequential
    ampbridge_paddle.prepare(model, optimizer, nn.CrossEntropyLoss(), policy="O0")
    assert type(net) is nn.Sequential
    plain, native = network(), network()
    loss = F.cross_entropy(plain(paddle.to_tensor(X)), paddle.to_tensor(LABELS))
    assert model.train_batch([X], [LABELS]) == [loss.numpy()]
    high_level = paddle.Model(native)
    high_level.prepare(momentum(native), nn.CrossEntropyLoss())
    high_level.train_batch([X], [LABELS])
    for ours, theirs in zip(net.parameters(), native.parameters(), strict=True):
        assert np.array_equal(ours.numpy(), theirs.numpy())


def test_amp_configs_beside_it_are_refused() -> None:
    model = prepared("O2")
    with pytest.raises(amp.UnsupportedError, match=r"amp_configs.*\nHint: "):
        model.prepare(momentum(model.network), nn.CrossEntropyLoss(), amp_configs="O1")


def test_what_is_no_paddle_model_is_refused() -> None:
    with pytest.raises(amp.AmpBridgeError, match=r"Sequential\.\nHint: .*paddle\.Model\(network\)"):
        ampbridge_paddle.prepare(network())


def test_importing_the_package_imports_no_framework() -> None:
    program = (
        "import sys, ampbridge_paddle; print('paddle' in sys.modules, ampbridge_paddle.prepare)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("False <function prepare")
