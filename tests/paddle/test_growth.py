"""Training that grows: what is kept of steps that are over."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn
from paddle.base import core
from paddle.distributed.fleet.utils import recompute

import ampbridge as amp
import ampbridge_paddle
from ampbridge import lens
from ampbridge_testing.growth import BOUND, Call, Growth, growth

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
X, Y = (RNG.standard_normal((256, columns)).astype(np.float32) for columns in (32, 16))
MODULES = sorted(Path(ampbridge_paddle.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_nobody_reads_the_graph(module: Path) -> None:
    """Who reads ``Tensor.grad_fn`` leaks the graph behind it, and all it holds (Paddle 3.3.1)."""
    tree = ast.parse(module.read_text())
    read = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    named = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert not (read | named) & {"grad_fn", "next_functions"}


def loss_fn(model: nn.Layer, x: Any, y: Any) -> Any:
    return F.mse_loss(model(x), y)


def recomputing(model: nn.Layer, x: Any, y: Any) -> Any:
    x.stop_gradient = False
    return F.mse_loss(model[2](recompute(model[:2], x)), y)


def new() -> tuple[nn.Layer, paddle.optimizer.Optimizer]:
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 16))
    return model, paddle.optimizer.AdamW(1e-3, parameters=model.parameters())


def keeps_nothing(call: Call, bound: Growth = BOUND) -> None:
    """Nor does Paddle's own count of the memory that its tensors hold grow."""
    call()
    before = core.host_memory_stat_current_value("Allocated", 0)
    found = growth(call, bound)
    assert found.is_within(bound), found
    assert core.host_memory_stat_current_value("Allocated", 0) <= before


@pytest.mark.parametrize("loss", [loss_fn, recomputing])
@pytest.mark.parametrize("policy", ["O0", "O1", "O2:bfloat16"])
def test_steps_hold_no_more_tensors(policy: str, loss: Any) -> None:
    step = amp.train_step(loss, *new(), policy=policy, scaler=amp.GradScaler(8.0))
    keeps_nothing(lambda: step(X, Y).applied)


def test_ops_whose_results_are_rounded_in_place_leave_nothing() -> None:
    """What Paddle calls without a gradient of its own: mobile nets' relu6, gates, normalizations."""
    parts = [nn.Conv2D(2, 8, 3), nn.BatchNorm2D(8), nn.ReLU6(), nn.Hardswish(), nn.Sigmoid()]
    model = nn.Sequential(*parts, nn.Flatten(), nn.Linear(8 * 4 * 4, 16))
    optimizer = paddle.optimizer.SGD(1e-3, model.parameters())
    step = amp.train_step(loss_fn, model, optimizer, policy="O1")
    images = RNG.standard_normal((4, 2, 6, 6)).astype(np.float32)
    keeps_nothing(lambda: step(images, Y[:4]).applied)


@pytest.mark.parametrize("report", [lens.census, lens.ranges])
def test_reports_leave_nothing(report: Any) -> None:
    """But for the list that ``paddle.to_tensor`` leaks (3.3.1), here of each weight that is put back."""
    model, _ = new()
    passes = 4
    bound = BOUND._replace(objects=passes * len(model.parameters()))
    keeps_nothing(lambda: report(loss_fn, model, X, Y), bound)


def test_a_native_loop_of_a_decorated_model_leaves_nothing() -> None:
    model, optimizer = amp.decorate(*new(), "O2")
    scaler, x, y = amp.GradScaler(8.0), paddle.to_tensor(X), paddle.to_tensor(Y)

    def iterate() -> None:
        scaler.scale(loss_fn(model, x, y)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()

    keeps_nothing(iterate)


def test_a_prepared_model_leaves_nothing() -> None:
    network, optimizer = new()
    model = paddle.Model(network)
    ampbridge_paddle.prepare(model, optimizer, nn.MSELoss(), policy="O1")
    x, y = paddle.to_tensor(X), paddle.to_tensor(Y)
    keeps_nothing(lambda: model.train_batch([x], [y]))
