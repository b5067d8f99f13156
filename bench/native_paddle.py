"""What is Paddle's own: its loop in float32. On a GPU its 16-bit kernels run, on a CPU the simulation."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import paddle
import paddle.nn.functional as F
from measuring import Maker
from paddle import Tensor, nn
from paddle.amp import grad_scaler
from steps import Fresh, Shape, Task, beside, by_hand, pooled

import ampbridge as amp

PLACE = paddle.get_device()
warnings.simplefilter("ignore", amp.SimulationWarning)  # it is what is measured here
POLICIES = {
    "ampbridge, O1 float16": amp.Policy("O1"),
    "ampbridge, O1 bfloat16": amp.Policy("O1", "bfloat16"),
}
DENIED = {'ampbridge, O1 float16, deny=["relu"]': amp.Policy("O1", deny=["relu"])}
Module, add_n, loop = nn.Layer, paddle.add_n, by_hand
device = PLACE if PLACE != "cpu" else "CPU, simulated"
if PLACE.startswith("gpu"):
    device = paddle.device.cuda.get_device_name()
wait = None if PLACE == "cpu" else paddle.device.synchronize


def loss_fn(model: nn.Layer, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def task(model: nn.Layer, x: np.ndarray, y: np.ndarray) -> Task:
    return Task(model, loss_fn, (paddle.to_tensor(x), paddle.to_tensor(y)))


def transformer(shape: Shape) -> nn.Layer:
    paddle.seed(0)
    layer = nn.TransformerEncoderLayer(shape.width, 4, 4 * shape.width, dropout=0.0)
    encoder = nn.TransformerEncoder(layer, shape.layers)
    return pooled(nn.Layer, encoder, nn.Linear(shape.width, shape.classes))


def own_scaler() -> paddle.amp.GradScaler:
    """Paddle's refuses to be made on a CPU, where its kernels are all the same."""
    grad_scaler.amp_global_state().amp_dtype = "float16"
    unlocked = mock.patch.object(grad_scaler, "in_dynamic_mode", return_value=False)
    with unlocked if PLACE == "cpu" else nullcontext():
        return paddle.amp.GradScaler()


def compared(
    fresh: Fresh, scaled: bool = False, policies: Mapping[str, amp.Policy] = POLICIES
) -> dict[str, Maker]:
    return beside("float32 loop", partial(loop, fresh), fresh, policies)


def cases(fresh: Fresh, workload: str) -> Iterator[tuple[str, Mapping[str, Maker]]]:
    yield "against float32", compared(fresh, policies={**POLICIES, **DENIED})


def weight(model: nn.Layer, *shape: int) -> Tensor:
    return model.create_parameter(list(shape))


def ops(model: Any) -> dict[str, Any]:
    return {"relu": F.relu, "linear": lambda x: F.linear(x, model.weight), "softmax": F.softmax}
