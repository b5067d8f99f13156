"""What the framework's objects are, and how a user makes them."""

from __future__ import annotations

from torch import nn, optim

from ampbridge.adapters.backend import Kind

EXAMPLES = {
    "model": "model = torch.nn.Linear(4, 2)",
    "optimizer": "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
    "float32 model": "model.float()",
    "loss_fn": "def loss_fn(model, x, y): return criterion(model(x), y)",
}


def kind(obj: object) -> Kind | None:
    """See ``Backend.kind``."""
    if isinstance(obj, optim.Optimizer):
        return "optimizer"
    if isinstance(obj, nn.Module):
        is_loss = any(base.__module__ == nn.modules.loss.__name__ for base in type(obj).__mro__)
        return "loss" if is_loss else "model"
    return "scheduler" if isinstance(obj, optim.lr_scheduler.LRScheduler) else None
