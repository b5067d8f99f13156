"""A class of one's own over GradScaler, and a region as a decorator."""
import functools

import paddle
from paddle import amp

region = functools.partial(amp.auto_cast, level="O1", custom_white_list=["elementwise_add"])


class MyScaler(amp.GradScaler):
    def __init__(self, start=2 ** 8):
        super().__init__(init_loss_scaling=start, incr_every_n_steps=50)

    def train_step(self, loss, optimizer):
        self.scale(loss).backward()
        self.step(optimizer)
        self.update()


class Net(paddle.nn.Layer):
    @region(dtype=f"{'float'}16")
    def forward(self, x):
        return self.linear(x)


scaler = MyScaler(512)
for x, y in loader:
    scaler.train_step(loss_fn(net(x), y), optimizer)
