import paddle

model = SimpleNet(input_size, output_size)
optimizer = paddle.optimizer.SGD(learning_rate=0.0001, parameters=model.parameters())
scaler = paddle.amp.GradScaler(init_loss_scaling=1024)
model, optimizer = paddle.amp.decorate(models=model, optimizers=optimizer, level='O2', master_weight=None, save_dtype=None)

for epoch in range(epochs):
    for i, (data, label) in enumerate(zip(train_data, labels)):
        with paddle.amp.auto_cast(level='O2'):
            output = model(data)
            loss = mse(output, label)
        scaled = scaler.scale(loss)
        scaled.backward()
        scaler.minimize(optimizer, scaled)
        optimizer.clear_grad(set_to_zero=False)
