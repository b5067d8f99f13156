import paddle

model = paddle.Model(LeNet(), inputs, labels)
optim = paddle.optimizer.Adam(parameters=model.parameters(), grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0))
model.prepare(optim, paddle.nn.CrossEntropyLoss(), paddle.metric.Accuracy(), amp_configs='O1')
model.fit(data, epochs=2, batch_size=32)
