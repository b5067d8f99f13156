import paddle
from paddle.vision.models import resnet18


def train(loader, epochs):
    net = resnet18(num_classes=10)
    net = paddle.amp.decorate(models=net, level="O2")
    optimizer = paddle.optimizer.Momentum(0.1, parameters=net.parameters())
    scaler = paddle.amp.GradScaler(init_loss_scaling=1024)
    for _ in range(epochs):
        for images, labels in loader:
            with paddle.amp.auto_cast(level="O2"):
                loss = paddle.nn.functional.cross_entropy(net(images), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.clear_grad()
