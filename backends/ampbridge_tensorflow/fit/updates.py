"""What happens where all updates of Keras optimizers pass, in ``Optimizer.apply``.

At its end low variables without masters are rounded, and low moments; a warning comes if there are none.
Before it a warning comes if a model that is decorated in float16 is trained and nobody has scaled the loss.
Both come once for each optimizer, because a ``train_step`` of the user's own, or a loop by hand, may use any
number of them. Another model, which Keras' own loop trains in a float16 region, is warned of before the
first batch: ``compile`` scales the loss of decorated models alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any

import keras
import tensorflow as tf

from ampbridge.adapters.calling_code import warn
from ampbridge.adapters.interception import Interception, Site
from ampbridge.adapters.low_storage import no_moments, warn_of_rounded_slots
from ampbridge.policies.policy import Policy
from ampbridge_tensorflow import _private
from ampbridge_tensorflow.autocast.regions import in_regions, method_site, replaces
from ampbridge_tensorflow.autocast.rules import Rules
from ampbridge_tensorflow.model import fitted
from ampbridge_tensorflow.model.fitted import Fitted
from ampbridge_tensorflow.native_values import moments, native_variable, rounded_to


def check_moments(policy: Policy, optimizer: Any) -> None:
    """Refuse low slots of an optimizer that has none, where this is known before its first update."""
    if policy.slots == "float32" or optimizer is None:
        return
    inner = _inside(optimizer)
    found = moments(inner)
    is_plain = isinstance(inner, keras.optimizers.SGD) and not inner.momentum
    if is_plain or (found and not any(found.values())):
        raise no_moments(policy, inner)


def serve(found: Fitted, optimizer: Any) -> None:
    """Let ``optimizer``, if there is one, train a decorated model; its low moments are rounded to nearest."""
    if optimizer is None:
        return
    found.optimizers.add(optimizer)
    policy, slots = found.decoration.policy, found.slots_of(optimizer)
    values = [tf.convert_to_tensor(slot) for slot in slots]
    if any(tf.reduce_any(rounded_to(policy.slots, value) != value) for value in values):
        warn_of_rounded_slots(policy, policy.slots)
    fitted.round_to_nearest(slots, policy.slots)


def _inside(optimizer: Any) -> Any:
    return getattr(optimizer, "inner_optimizer", optimizer)


def _find_sites() -> Sequence[Site]:
    sites = [method_site(keras.optimizers.Optimizer, "apply", _replace_apply)]
    by_keras = _private.find(_private.FINITE_BRANCH)
    return sites if by_keras is None else [*sites, Site(*by_keras, scaled(by_keras.value))]


updating: Interception[bool] = Interception("ampbridge_tensorflow updates", _find_sites)
"""The updates of Keras optimizers; the state is True where a scaler makes them."""


def scaled(function: Any) -> Any:
    """``function``, which updates with gradients of a scaled loss, or of one that needs no scale."""

    @wraps(function)
    def update(*args: Any, **kwargs: Any) -> Any:
        with updating.paused(True):
            return function(*args, **kwargs)

    return update


def _replace_apply(original: Any) -> Any:
    @wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        variables = trainable_variables or _private.optimizer_parameters(self) or ()
        updated = {id(native_variable(variable)) for variable in variables}
        if not updating.active.get() and self.loss_scale_factor is None:
            _warn_of(self, updated)
        original(self, grads, trainable_variables)
        for found in fitted.standing():
            _look_at_moments(found, updated, _inside(self))
            found.round(updated, self)

    return apply


def _look_at_moments(found: Fitted, updated: set[int], optimizer: Any) -> None:
    """Warn, once for each optimizer, if moments are to be low and its update has made none."""
    policy = found.decoration.policy
    if policy.slots == "float32" or optimizer in found.looked_at:
        return
    low = updated.intersection(id(native_variable(v)) for v in fitted.low_variables(found.model))
    if low:
        found.looked_at.add(optimizer)
        by_variable = moments(optimizer)
        if not any(by_variable.get(key) for key in low):
            warn(str(no_moments(policy, optimizer)))


def _warn_of(optimizer: Any, updated: set[int]) -> None:
    """Warn if a model that is decorated in float16 has variables among ``updated`` (ids)."""
    for found in fitted.standing():
        if not found.scales or optimizer in found.unscaled:
            continue
        found.unscaled.add(optimizer)
        if updated.isdisjoint(id(native_variable(variable)) for variable in found.model.variables):
            continue
        is_wrapped = found.scaled is not None and found.scaled.inner_optimizer is optimizer
        hint = (
            "in train_step, loss = self."
            if is_wrapped
            else "optimizer = ampbridge_tensorflow.LossScaleOptimizer(optimizer), and loss = "
        )
        warn(
            f"{type(optimizer).__name__} updates a {type(found.model).__name__} that is decorated "
            f"with {found.decoration.policy!r}, from a loss without loss scaling: gradients under "
            f"6e-8 become zero.\nHint: {hint}optimizer.scale_loss(loss) before "
            "tape.gradient(loss, weights); or a bfloat16 policy, which needs none."
        )


# -- in a region


def scales_by_itself(optimizer: Any) -> bool:
    """Whether a Keras optimizer scales the loss, by whatever rule."""
    wraps_another = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    return wraps_another or optimizer.loss_scale_factor is not None


@replaces(_private.MAKE_TRAIN_FUNCTION)
@in_regions
def _make_train_function(
    rules: Rules, original: Any, model: keras.Model, *args: Any, **kwargs: Any
) -> Any:
    """``fit`` and ``train_on_batch`` call it before the first batch."""
    optimizer = model.optimizer
    if (
        rules.low == tf.float16
        and optimizer is not None
        and not scales_by_itself(optimizer)
        and fitted.fitted(model) is None
    ):
        warn(
            f"Keras trains a {type(model).__name__} in a float16 region, and its "
            f"{type(optimizer).__name__} scales no loss: gradients under 6e-8 become zero.\n"
            "Hint: amp.decorate(model, policy='O1:float16') in place of the region, before "
            "model.compile, scales the loss; or a bfloat16 policy, which needs no scale."
        )
    return original(model, *args, **kwargs)
