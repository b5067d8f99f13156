"""Scripts with Paddle's own AMP calls, run as they are and as ``port --to ampbridge`` rewrites them.

The first run on the device with its 16-bit kernels, the others simulated on the CPU: scales and skipped steps
are the same, and so are losses but for the roundings of sums.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle_native_scaler import without_print

import ampbridge
from ampbridge_port.rewriting import rewrite

CORPUS = Path(__file__).parents[1] / "port" / "corpus"
STEPS = "init_loss_scaling=2.0**14, incr_every_n_steps=2"

IN_A_BRANCH = f"""
import paddle

def main(model, opt, loader, level="O1"):
    scaler = paddle.amp.GradScaler({STEPS})
    if level == "O2":
        model, opt = paddle.amp.decorate(models=model, optimizers=opt, level="O2")
    for x, y in loader:
        with paddle.amp.auto_cast(level=level):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(opt); scaler.update(); see(scaler); opt.clear_grad()

main(model, optimizer, loader(), "LEVEL")
"""

TORCH_NAMES = f"""
import paddle

scaler = paddle.amp.GradScaler({STEPS})
for x, y in loader():
    with paddle.autocast("cuda", dtype="float16"):
        loss = loss_fn(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    paddle.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update(); see(scaler)
    optimizer.clear_grad()
"""

GIVEN = {
    "decorated in a branch, O1": IN_A_BRANCH.replace("LEVEL", "O1"),
    "decorated in a branch, O2": IN_A_BRANCH.replace("LEVEL", "O2"),
    "torch's names": TORCH_NAMES,
}
SEEN = {"scaler.update()": "scaler.update(); see(scaler)"}
CHANGES: dict[str, dict[str, str]] = {
    **{name: {} for name in GIVEN},
    "paddle_custom_lists": {**SEEN, "init_loss_scaling=1024, incr_every_n_steps=500": STEPS},
    "paddle_clip_each_norm": {
        "init_loss_scaling=1024": STEPS,
        "cross_entropy": "mse_loss",
        "scaler.minimize(optimizer, scaled)": "scaler.minimize(optimizer, scaled); see(scaler)",
    },
    "paddle_clip_by_step": {
        **SEEN,
        "init_loss_scaling=1024": STEPS,
        "range(10)": "range(1)",
        "in enumerate(loader)": "in enumerate(loader())",
        "model(batch)": "model(*batch)",
        "step > 10": "step > 0",
        "len(loader)": "9",
    },
    "paddle_evaluation_region": {
        **SEEN,
        "GradScaler()": f"GradScaler({STEPS})",
        "\ntrain(model, loader)": "\ntrain(model, loader())",
        "loss = model(x)": "loss = model(*x)",
    },
    "paddle_scalers_in_a_list": {
        "init_loss_scaling=512": STEPS,
        "self.networks[i](image).mean()": "self.networks[i](*image)",
        "self.scalers[i].scale(loss))\n": "self.scalers[i].scale_(loss)); see(self.scalers[i])\n\n\n"
        "trained = Adversarial([model], [optimizer])\nfor batch in loader():\n    trained.step(batch)\n",
        "scale_(loss)": "scale(loss)",
        "minimize(self.optimizers[i], self.scalers[i].scale(loss))": "minimize("
        "self.optimizers[i], backward(self.scalers[i].scale(loss)))",
    },
}


class Net(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x: Any, y: Any = None) -> Any:
        output = self.layers(x)
        return output if y is None else nn.functional.mse_loss(output, y)


def counted(decorate: Any, counts: list[str], *arguments: Any, **options: Any) -> Any:
    counts.append("decorated")
    return decorate(*arguments, **options)


def trained(script: str, device: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """After each step the scale and whether weights have changed; at last which were decorated."""
    paddle.set_device(device)
    paddle.seed(3)
    model = Net()
    for number, weight in enumerate(model.parameters()):  # devices draw other numbers
        values = np.random.default_rng(number).normal(size=weight.shape, scale=0.2)
        weight.set_value(values.astype("float32"))
    inputs = np.random.default_rng(7).normal(size=(6, 8, 16)).astype("float32")
    targets = inputs[:, :, :4] * np.where(np.arange(6) == 2, 1e30, 1.0)[:, None, None]
    pairs = zip(inputs, targets.astype("float32"), strict=True)
    batches = [tuple(map(paddle.to_tensor, pair)) for pair in pairs]
    recorded: list[Any] = []
    weights = [float(model.layers[0].weight.cast("float32").abs().sum())]

    def see(scaler: Any) -> None:
        scale = scaler.get_scale() if hasattr(scaler, "get_scale") else float(scaler._scale.item())
        weights.append(float(model.layers[0].weight.cast("float32").abs().sum()))
        recorded.append((scale, weights[-1] != weights[-2]))

    def backward(scaled: Any) -> Any:
        scaled.backward()
        return scaled

    names = {
        "model": model,
        "build_model": lambda: model,
        "loader": lambda: batches,
        "valid_loader": inputs[:0],
        "loss_fn": nn.MSELoss(),
        "optimizer": paddle.optimizer.SGD(0.05, parameters=model.parameters()),
        "see": see,
        "backward": backward,
    }
    decorated: list[str] = []
    for module in (paddle.amp, ampbridge):
        monkeypatch.setattr(module, "decorate", partial(counted, module.decorate, decorated))
    monkeypatch.setattr(sys, "argv", ["train.py"])
    with without_print():
        exec(compile(script, "<script>", "exec"), names)
    return [*recorded, decorated, weights[-1]]


@pytest.mark.parametrize("name", CHANGES)
def test_a_rewritten_script_trains_as_before(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = GIVEN.get(name) or CORPUS.joinpath(f"{name}.py").read_text("utf-8")
    for before, after in CHANGES[name].items():
        assert before in script, before
        script = script.replace(before, after)
    rewriting = rewrite(script)
    assert not rewriting.findings
    assert "paddle.amp." not in rewriting.text
    with monkeypatch.context() as patched:
        *native, expected = trained(script, "virtual_gpu", patched)
    with monkeypatch.context() as patched:
        *ours, weights = trained(rewriting.text, "cpu", patched)
    assert len(native) > 3
    assert ours == native
    assert {changed for _, changed in native[:-1]} == {True, False}  # skipped steps, too
    assert native[-1] == (["decorated"] if "O2" in name else [])
    assert weights == pytest.approx(expected, rel=1e-3)
