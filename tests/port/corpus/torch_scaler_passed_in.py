"""The loop of a library of trainings: whoever calls it brings the scaler."""
import torch


def train_one_epoch(model, criterion, data_loader, optimizer, device, loss_scaler, max_norm):
    model.train(True)
    for samples, targets in data_loader:
        samples = samples.to(device, non_blocking=True)
        targets = targets.to(device, non_blocking=True)
        with torch.cuda.amp.autocast():
            outputs = model(samples)
            loss = criterion(outputs, targets)
        optimizer.zero_grad()
        loss_scaler(loss, optimizer, clip_grad=max_norm, parameters=model.parameters())
