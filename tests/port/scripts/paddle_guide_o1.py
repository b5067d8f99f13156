"""Paddle's guide to mixed precision: O1."""

import time

import paddle
import paddle.nn as nn

start_time = None


def start_timer():
    global start_time
    paddle.device.synchronize()
    start_time = time.time()


def end_timer_and_print(msg):
    paddle.device.synchronize()
    print("\n" + msg)
    print(f"sum time = {time.time() - start_time:.3f} sec")


class SimpleNet(nn.Layer):
    def __init__(self, input_size, output_size):
        super().__init__()
        self.linear1 = nn.Linear(input_size, output_size)
        self.relu1 = nn.ReLU()
        self.linear2 = nn.Linear(input_size, output_size)
        self.relu2 = nn.ReLU()
        self.linear3 = nn.Linear(input_size, output_size)

    def forward(self, x):
        x = self.relu1(self.linear1(x))
        x = self.relu2(self.linear2(x))
        return self.linear3(x)


epochs = 5
input_size = 4096
output_size = 4096
batch_size = 512
nums_batch = 50

train_data = [paddle.randn((batch_size, input_size)) for _ in range(nums_batch)]
labels = [paddle.randn((batch_size, output_size)) for _ in range(nums_batch)]

mse = paddle.nn.MSELoss()
model = SimpleNet(input_size, output_size)
optimizer = paddle.optimizer.SGD(learning_rate=0.0001, parameters=model.parameters())

scaler = paddle.amp.GradScaler(init_loss_scaling=1024)

start_timer()
for epoch in range(epochs):
    for i, (data, label) in enumerate(zip(train_data, labels)):
        with paddle.amp.auto_cast():
            output = model(data)
        loss = mse(output, label)
        scaled = scaler.scale(loss)
        scaled.backward()
        scaler.minimize(optimizer, scaled)
        optimizer.clear_grad(set_to_zero=False)
print(loss)
end_timer_and_print("O1:")
