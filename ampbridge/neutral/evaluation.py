"""What a model says about data, and how good that is."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ampbridge.adapters.arguments import backend_of_model
from ampbridge.adapters.backend import Model
from ampbridge.errors import ArgumentError
from ampbridge.neutral import checks
from ampbridge.neutral.native import native_of_backend
from ampbridge.policies.policy import Policy
from ampbridge.policies.schedule import single
from ampbridge.training.decorate import fit_for_own_loop

NumpyArray = npt.NDArray[Any]


class Evaluation(NamedTuple):
    """The result of ``evaluate``.

    Attributes:
        loss: the mean cross entropy, or for floating-point targets the mean squared error.
        accuracy: the share of labels that the largest logit names; None for floating-point targets.
    """

    loss: float
    accuracy: float | None


def predict(
    model: Model, x: Any, *, policy: str | Policy | None = None, size: int = 256
) -> NumpyArray:
    """The outputs of ``model`` for ``x`` in evaluation mode, on the host: float32, or float64.

    Modes of layers are restored, and no gradients are computed.

    Args:
        model: native. It is called as ``model(x)``, and returns one tensor.
        x: a NumPy array or a native tensor.
        policy: by default the model runs as it does when you call it: a decorated model under its own
            policy, any other in float32. With a policy of its own (O1, or what it is decorated with),
            the model runs under that one.
        size: the number of examples in one call.

    Raises:
        ArgumentTypeError: for what is not a model.
        CallOrderError: at O2, if the model is not decorated with this policy.
    """
    backend = backend_of_model(model)
    native = native_of_backend(backend)
    size = checks.whole("size", size, 1, 256)
    if not len(x):
        raise ArgumentError("x holds no examples.\nHint: neutral.predict(model, x)")
    parsed = None if policy is None else single(policy)
    if parsed is not None:
        fit_for_own_loop(backend, model, parsed, "neutral.predict or evaluate")

    def outputs(part: Any) -> Any:
        if parsed is None:
            return native.inference(model, part)
        with backend.autocast(parsed):
            return native.inference(model, part)

    parts = (x[start : start + size] for start in range(0, len(x), size))
    return np.concatenate([backend.to_numpy(outputs(part)) for part in parts])


def evaluate(
    model: Model,
    x: Any,
    y: Any,
    *,
    policy: str | Policy | None = None,
    size: int = 256,
    axis: int = -1,
    ignore_index: int = -100,
) -> Evaluation:
    """Loss and accuracy of ``model`` on examples ``x`` and their labels or targets ``y``.

    The model runs as in ``predict``. Loss and accuracy are computed on the host, in float64.

    Args:
        model, x, policy, size: as of ``predict``.
        y: class numbers of any integer dtype, or floating-point targets in the shape of the outputs.
        axis, ignore_index: of integer labels, as of ``cross_entropy``.

    Raises:
        AmpBridgeError: for labels that ``cross_entropy``, or targets that ``mse_loss`` would refuse.
    """
    outputs = predict(model, x, policy=policy, size=size).astype(np.float64)
    labels = native_of_backend(backend_of_model(model)).host(y)
    if labels.dtype.kind not in "iub":
        checks.check_equal_shapes(outputs, labels)
        return Evaluation(float(np.square(outputs - labels).mean()), None)
    axis = checks.class_axis(axis, outputs.ndim)
    checks.check_labels(labels, outputs.shape, axis)
    checks.check_range(labels, outputs.shape[axis], ignore_index)
    logits = np.moveaxis(outputs, axis, -1)
    counts = labels != ignore_index
    return _of_classes(logits[counts], labels[counts].astype(np.int64))


def _of_classes(logits: NumpyArray, labels: NumpyArray) -> Evaluation:
    """Of logits (labels, classes)."""
    if not labels.size:
        return Evaluation(float("nan"), float("nan"))
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_sums = np.log(np.exp(shifted).sum(axis=-1))
    losses = log_sums - np.take_along_axis(shifted, labels[:, None], axis=-1)[:, 0]
    return Evaluation(float(losses.mean()), float((logits.argmax(axis=-1) == labels).mean()))
