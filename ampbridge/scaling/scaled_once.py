"""A loss is scaled once: within a step that scales it, ``GradScaler.scale`` is refused."""

from __future__ import annotations

from ampbridge.adapters.scoped import Scoped
from ampbridge.adapters.tracing import called_as_it_is
from ampbridge.errors import CallOrderError

scaled_by: Scoped[str | None] = Scoped("ampbridge loss scaled by", None)
"""The name of the function that scales what ``loss_fn`` returns, while ``loss_fn`` runs."""


@called_as_it_is
def check_that_nobody_else_scales() -> None:
    """Refuse to scale a loss inside of a ``loss_fn`` whose loss is scaled anyway: nothing would show it."""
    caller = scaled_by.get()
    if caller is not None:
        raise CallOrderError(
            f"scaler.scale(loss) inside of the loss_fn of {caller}, which scales and unscales by itself: "
            "gradients would be too large by the scale.\n"
            f"Hint: def loss_fn(model, x, y): return loss  # unscaled; {caller}(..., scaler=scaler)"
        )
