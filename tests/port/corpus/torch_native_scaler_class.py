"""timm's way: a class around the scaler, which is called."""
import torch


class NativeScaler:
    def __init__(self, enabled=True):
        self._scaler = torch.cuda.amp.GradScaler(enabled=enabled, growth_interval=1000)

    def __call__(self, loss, optimizer, clip_grad=None, parameters=None):
        self._scaler.scale(loss).backward()
        if clip_grad is not None:
            self._scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
        self._scaler.step(optimizer)
        self._scaler.update()


loss_scaler = NativeScaler()
for samples, targets in loader:
    with torch.cuda.amp.autocast():
        loss = criterion(model(samples), targets)
    optimizer.zero_grad()
    loss_scaler(loss, optimizer, clip_grad=3.0, parameters=model.parameters())
