import paddle
from paddle import nn


class FullyConnected(nn.Layer):
    """(x, y) -> (u, v, p)."""

    def __init__(self, width, depth):
        super().__init__()
        sizes = [2] + [width] * depth
        self.hidden = nn.LayerList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.last = nn.Linear(width, 3)

    def forward(self, xy):
        for layer in self.hidden:
            xy = nn.functional.silu(layer(xy))
        return self.last(xy)


def cavity_residuals(network, inside, walls):
    """The mean squares of the residuals: divergence inside, velocity on the walls."""
    flow = network(inside)
    u_xy = paddle.grad(flow[:, 0].sum(), inside, create_graph=True)[0]
    v_xy = paddle.grad(flow[:, 1].sum(), inside, create_graph=True)[0]
    divergence = u_xy[:, 0] + v_xy[:, 1]
    lid = (walls[:, 1] > 0.99).astype("float32")
    speed = network(walls)[:, 0] - lid
    return {"continuity": (divergence**2).mean(), "walls": (speed**2).mean()}
