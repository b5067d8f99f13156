"""Mixed precision for NumPy, on the gradients of HIPS ``autograd``: a reference and a teaching aid.

    from ampbridge_numpy import nn, optim

    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))
    optimizer = optim.SGD(model.parameters(), lr=0.2, momentum=0.9)

Low precision is storage here: arrays of float16 or bfloat16, whose arithmetic is done in float32
and rounded once, as Tensor Cores do it.
"""

from __future__ import annotations

from ampbridge_numpy import nn, optim

__all__ = ["nn", "optim"]
