"""The guide's first script: O1."""

import paddle

paddle.seed(100)
model = SimpleNet(input_size, output_size)
optimizer = paddle.optimizer.SGD(learning_rate=0.0001, parameters=model.parameters())
scaler = paddle.amp.GradScaler(init_loss_scaling=1024)

for epoch in range(epochs):
    for i, (data, label) in enumerate(zip(train_data, labels)):
        with paddle.amp.auto_cast():
            output = model(data)
        loss = mse(output, label)
        scaled = scaler.scale(loss)
        scaled.backward()
        scaler.minimize(optimizer, scaled)
        optimizer.clear_grad()
