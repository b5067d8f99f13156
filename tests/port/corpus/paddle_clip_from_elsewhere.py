import paddle
from ppcls.optimizer import build_grad_clip

net = paddle.vision.models.resnet50()
optimizer = paddle.optimizer.Momentum(
    learning_rate=0.1, parameters=net.parameters(), grad_clip=build_grad_clip(config)
)
scaler = paddle.amp.GradScaler(init_loss_scaling=128.0)
for images, labels in train_loader:
    with paddle.amp.auto_cast():
        loss = ce(net(images), labels)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.clear_grad()
