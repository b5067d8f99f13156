"""The Paddle side of sweep.py: the simulation over float32."""

from __future__ import annotations

from functools import partial

import paddle
import paddle.nn.functional as F
from overhead_paddle import POLICIES, bridged, float32, made_by
from paddle import nn
from sweep import WIDTH, Makers, batch


class ManyParameters(nn.Layer):
    """So many parameters, whose sum multiplies the input."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.each = nn.ParameterList([self.create_parameter([WIDTH]) for _ in range(count)])

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return x * paddle.add_n(list(self.each))


class Chain(nn.Layer):
    """``count`` ops in a row."""

    def __init__(self, op: str, count: int) -> None:
        super().__init__()
        self.weight = self.create_parameter([WIDTH, WIDTH])
        self.op, self.count = op, count

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        op = {"relu": F.relu, "linear": lambda x: F.linear(x, self.weight), "softmax": F.softmax}
        x = x * self.weight[0]
        for _ in range(self.count):
            x = op[self.op](x)
        return x


def makers(swept: str, count: int) -> Makers:
    x, y = map(paddle.to_tensor, batch())
    fresh = ManyParameters(count) if swept == "parameters" else Chain(swept, count)
    made = {"float32 loop": float32}
    for name in ("O1 float16", "O1 bfloat16"):
        made[f"ampbridge, {name}"] = partial(bridged, policy=POLICIES[name])
    made["float32 loop, again"] = float32
    return {name: partial(made_by, maker, fresh, x, y) for name, maker in made.items()}
