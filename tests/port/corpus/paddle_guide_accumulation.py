import paddle

accumulate_batchs_num = 10  # how many batches a step takes
model = SimpleNet(input_size, output_size)
optimizer = paddle.optimizer.SGD(learning_rate=0.0001, parameters=model.parameters())
scaler = paddle.amp.GradScaler(init_loss_scaling=1024)

for epoch in range(epochs):
    for i, (data, label) in enumerate(zip(train_data, labels)):
        with paddle.amp.auto_cast(level="O1"):
            output = model(data)
        loss = mse(output, label)
        scaled = scaler.scale(loss)
        scaled.backward()
        if (i + 1) % accumulate_batchs_num == 0:
            scaler.minimize(optimizer, scaled)
            optimizer.clear_grad()
