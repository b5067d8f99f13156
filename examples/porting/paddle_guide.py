"""SimpleNet of Paddle's guide to mixed precision, O1 with accumulated gradients, on a GPU.

ampbridge port examples/porting/paddle_guide.py --to tensorflow
"""

import paddle
from paddle import nn

EPOCHS, BATCHES, BATCH_SIZE, WIDTH = 5, 50, 512, 4096
ACCUMULATED = 10


class SimpleNet(nn.Layer):
    def __init__(self, width):
        super().__init__()
        self.linears = nn.LayerList([nn.Linear(width, width) for _ in range(3)])

    def forward(self, x):
        first, second, last = self.linears
        return last(nn.functional.relu(second(nn.functional.relu(first(x)))))


def main():
    model = SimpleNet(WIDTH)
    optimizer = paddle.optimizer.SGD(learning_rate=1e-4, parameters=model.parameters())
    scaler = paddle.amp.GradScaler(init_loss_scaling=1024, incr_every_n_steps=500)
    mse = nn.MSELoss()
    for epoch in range(EPOCHS):
        for i in range(BATCHES):
            x = paddle.randn([BATCH_SIZE, WIDTH])
            y = paddle.randn([BATCH_SIZE, WIDTH])
            with paddle.amp.auto_cast(
                custom_white_list={"elementwise_add"},
                custom_black_list={"reduce_sum", "matmul"},
                level="O1",
            ):
                loss = mse(model(x), y)
            scaled = scaler.scale(loss / ACCUMULATED)
            scaled.backward()
            if (i + 1) % ACCUMULATED == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.clear_grad()
        print(epoch, float(loss))


if __name__ == "__main__":
    main()
