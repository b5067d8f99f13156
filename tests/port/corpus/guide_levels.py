"""The guide's page: the same training with and without AMP, by a function."""

import paddle

epochs, batch_size = 10, 256


class SimpleNet(paddle.nn.Layer):
    def __init__(self, input_size, output_size):
        super().__init__()
        self.linears = paddle.nn.LayerList(
            [paddle.nn.Linear(input_size, output_size) for _ in range(9)]
        )

    def forward(self, x):
        for layer in self.linears:
            x = layer(x)
        return x


def train(model, optimizer, use_amp=True, level="O1"):
    scaler = paddle.amp.GradScaler(enable=use_amp, init_loss_scaling=1024)
    if use_amp and level == "O2":
        model, optimizer = paddle.amp.decorate(models=model, optimizers=optimizer, level="O2")
    mse = paddle.nn.MSELoss()
    for epoch in range(epochs):
        for data, label in zip(train_data, labels):
            with paddle.amp.auto_cast(
                enable=use_amp,
                custom_white_list={"elementwise_add"},
                custom_black_list={"reduce_mean"},
                level=level,
            ):
                loss = mse(model(data), label)
            scaled = scaler.scale(loss)
            scaled.backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.clear_grad(set_to_zero=False)
