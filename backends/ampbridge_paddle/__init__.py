"""The PaddlePaddle backend of ampbridge. Importing this package does not import Paddle."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import ampbridge as amp
    from ampbridge_paddle.fit.scale_logs import ScaleLogs

__all__ = ["ScaleLogs", "prepare", "recompute"]


def __getattr__(name: str) -> Any:
    if name == "ScaleLogs":
        return import_module("ampbridge_paddle.fit.scale_logs").ScaleLogs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def prepare(
    model: Any,
    optimizer: Any = None,
    loss: Any = None,
    metrics: Any = None,
    *,
    policy: str | amp.Policy = "O1",
    scaler: amp.GradScaler | Literal["auto"] | None = "auto",
) -> None:
    """``model.prepare(optimizer, loss, metrics)`` of a ``paddle.Model``, in mixed precision.

        model = paddle.Model(network)
        ampbridge_paddle.prepare(model, optimizer, paddle.nn.CrossEntropyLoss(), policy="O2")
        model.fit(data, accumulate_grad_batches=4)

    ``fit``, ``train_batch``, ``evaluate``, ``predict``, ``save`` and ``load`` are Paddle's own from then on.
    The network is decorated (see ``ampbridge.decorate``) wherever it is called, and ``scaler`` follows
    ampbridge's rule in full, its alarms included; ``save`` and ``load`` keep its state. The loss is
    computed in float32, from outputs in ``policy.output_dtype``. ``policy="O0"`` takes it all back.

    Args:
        model, optimizer, loss, metrics: as Paddle's own ``prepare`` takes them.
        scaler: a GradScaler; "auto" makes one where the policy needs it; None for none.

    Raises:
        UnsupportedError: for static graphs, and for what ``decorate`` refuses.
    """
    from ampbridge_paddle.fit.high_level import prepare

    prepare(model, optimizer, loss, metrics, policy, scaler)


def recompute(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``paddle.distributed.fleet.utils.recompute``.

    In a region or a step Paddle's own runs ``function`` the second time as it ran the first time, so
    that nothing needs to be rewritten; the name is there for symmetry with the other adapters.
    """
    from paddle.distributed.fleet.utils import recompute

    return recompute(function, *args, **kwargs)
