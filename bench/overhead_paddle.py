"""The Paddle side of overhead.py: on a GPU its 16-bit kernels, on a CPU the simulation."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Iterator
from functools import partial

import paddle
import paddle.nn.functional as F
from overhead import Case, Shape, Step, batch_of
from paddle import nn

import ampbridge as amp

PLACE = paddle.get_device()
warnings.simplefilter("ignore", amp.SimulationWarning)  # it is what is measured here


def device() -> str:
    if PLACE == "cpu":
        return "CPU, simulated"
    return paddle.device.cuda.get_device_name() if PLACE.startswith("gpu") else PLACE


class Transformer(nn.Layer):
    """An encoder over tokens, pooled and classified."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(shape.width, 4, 4 * shape.width, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, shape.layers)
        self.head = nn.Linear(shape.width, shape.classes)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.head(self.encoder(x).mean(1))


def model_of(shape: Shape) -> nn.Layer:
    paddle.seed(0)
    if shape.tokens:
        return Transformer(shape)
    widths = [shape.features, *[shape.width] * shape.layers]
    layers: list[nn.Layer] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(shape.width, shape.classes))


def loss_fn(model: nn.Layer, x: paddle.Tensor, y: paddle.Tensor) -> paddle.Tensor:
    return F.cross_entropy(model(x), y)


def finished(step: Step) -> Step:
    """On a GPU a step counts when the device has done it."""
    if PLACE == "cpu":
        return step

    def synchronised() -> None:
        step()
        paddle.device.synchronize()

    return synchronised


def float32(model: nn.Layer, x: paddle.Tensor, y: paddle.Tensor) -> Step:
    """The plain loop of Paddle's documentation."""
    optimizer = paddle.optimizer.AdamW(1e-4, parameters=model.parameters())

    def step() -> None:
        loss_fn(model, x, y).backward()
        optimizer.step()
        optimizer.clear_grad()

    return step


def bridged(model: nn.Layer, x: paddle.Tensor, y: paddle.Tensor, policy: amp.Policy) -> Step:
    optimizer = paddle.optimizer.AdamW(1e-4, parameters=model.parameters())
    step = amp.train_step(loss_fn, model, optimizer, policy=policy)
    return lambda: step(x, y)


POLICIES = {
    "O1 float16": amp.Policy("O1"),
    "O1 bfloat16": amp.Policy("O1", "bfloat16"),
    'O1 float16, deny=["relu"]': amp.Policy("O1", deny=["relu"]),
}


def cases(shape: Shape, workload: str) -> Iterator[Case]:
    x, y = map(paddle.to_tensor, batch_of(shape))
    fresh = model_of(shape)
    makers = {"float32 loop": float32}
    for name, policy in POLICIES.items():
        makers[f"ampbridge, {name}"] = partial(bridged, policy=policy)
    makers["float32 loop, again"] = float32
    yield Case(
        "against float32",
        {name: partial(made_by, maker, fresh, x, y) for name, maker in makers.items()},
    )


def made_by(
    maker: Callable[..., Step], fresh: nn.Layer, x: paddle.Tensor, y: paddle.Tensor
) -> Step:
    """A step over a copy of ``fresh``."""
    return finished(maker(copy.deepcopy(fresh), x, y))
