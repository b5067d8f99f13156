"""What the framework's objects are, and how a user makes them."""

from __future__ import annotations

from ampbridge.adapters.backend import Kind
from ampbridge_numpy.nn import Module

EXAMPLES = {
    "model": "model = nn.Linear(4, 2)",
    "optimizer": "optimizer = optim.SGD(model.parameters(), lr=0.1)",
    "float32 model": "model.weight = model.weight.astype('float32')",
    "loss_fn": "def loss_fn(model, x, y): return criterion(model(x), y)",
}


def kind(obj: object) -> Kind | None:
    """See ``Backend.kind``. An optimizer has a list of ``parameters`` and a ``step``."""
    if isinstance(obj, Module):
        return "model"
    steps = callable(getattr(obj, "step", None)) and not isinstance(obj, type)
    return "optimizer" if steps and isinstance(getattr(obj, "parameters", None), list) else None
