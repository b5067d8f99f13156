from torch.cuda.amp import autocast as cast, GradScaler

loss_scaler = GradScaler(2.0**10, 2.0, 0.25, 100)


def train(model, loader, optimizer, criterion):
    for images, labels in loader:
        optimizer.zero_grad(set_to_none=True)
        with cast():
            loss = criterion(model(images), labels)
        loss_scaler.scale(loss).backward()
        loss_scaler.step(optimizer)
        loss_scaler.update()
