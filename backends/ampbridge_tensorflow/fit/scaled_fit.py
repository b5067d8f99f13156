"""Loss scaling in ``compile`` and ``fit`` of models that are decorated in float16, as Keras' users expect it.

Keras scales the loss of a ``mixed_float16`` model unless ``compile(auto_scale_loss=False)`` says otherwise.
So it is here, at O1 as at O2, but by the rule of a ``GradScaler``: the optimizer of a compiled model is
wrapped in a ``LossScaleOptimizer`` as long as the model is decorated. One that scales by itself is the
user's choice, and stays.

A ``train_step`` of the user's own has to call ``optimizer.scale_loss``. Updates from a loss that nobody has
scaled are applied as they are, with a warning.

``compile`` also passes a model with low slots to another optimizer, as ``decorate`` would.
"""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from functools import wraps
from typing import Any

import keras

from ampbridge.adapters.interception import Interception
from ampbridge_tensorflow.autocast.regions import method_site
from ampbridge_tensorflow.fit.loss_scale_optimizer import LossScaleOptimizer
from ampbridge_tensorflow.fit.updates import check_moments, scales_by_itself, serve
from ampbridge_tensorflow.model import fitted
from ampbridge_tensorflow.model.fitted import Fitted, Mark
from ampbridge_tensorflow.native_values import made_under


def scale(model: Any, found: Fitted) -> None:
    """Wrap the optimizer of ``model``, if it has been compiled with one that does not scale."""
    optimizer = model.optimizer if getattr(model, "compiled", False) else None
    if optimizer is None or scales_by_itself(optimizer):
        return
    found.scaled = model.optimizer = wrapped(optimizer)


def unscale(model: Any, found: Fitted) -> None:
    """Take ``scale`` back."""
    if found.scaled is not None and model.optimizer is found.scaled:
        model.optimizer = found.scaled.inner_optimizer


def wrapped(optimizer: Any) -> LossScaleOptimizer:
    """``optimizer`` with a loss scale of its own, for a training loop that may not know of it.

    It is the same each time: a model that is decorated once more goes on with the scale that it had, and
    in the traces that it had.
    """
    found: _Wrapper | None = getattr(optimizer, _WRAPPER, None)
    if found is None:
        strategy = made_under(optimizer.iterations)
        with nullcontext() if strategy is None else strategy.scope():
            found = _Wrapper(LossScaleOptimizer(optimizer))
        found.optimizer.waits = True
        object.__setattr__(optimizer, _WRAPPER, found)
    return found.optimizer


_WRAPPER = "_ampbridge_wrapper"


class _Wrapper(Mark):
    """The LossScaleOptimizer that an optimizer has been wrapped in."""

    def __init__(self, optimizer: LossScaleOptimizer) -> None:
        self.optimizer = optimizer


def _replace_compile(original: Any) -> Any:
    signature = inspect.signature(original)

    @wraps(original)
    def compile(self: keras.Model, *args: Any, **kwargs: Any) -> None:
        found = fitted.fitted(self)
        if found is None:
            original(self, *args, **kwargs)
            return
        call = signature.bind(self, *args, **kwargs)
        call.apply_defaults()
        optimizer = call.arguments["optimizer"] = keras.optimizers.get(call.arguments["optimizer"])
        check_moments(found.decoration.policy, optimizer)
        wanted = call.arguments["auto_scale_loss"]
        call.arguments["auto_scale_loss"] = wanted and not found.scales
        original(*call.args, **call.kwargs)
        serve(found, optimizer)
        if wanted and found.scales:
            scale(self, found)

    return compile


compiling: Interception[None] = Interception(
    "ampbridge_tensorflow compile",
    lambda: [method_site(keras.Model, "compile", _replace_compile)],
)
"""``Model.compile``, while a model is decorated in float16 or with low slots."""
