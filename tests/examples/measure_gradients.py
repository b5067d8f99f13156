"""One framework's gradient errors for ``test_gradients.py``: ``python measure_gradients.py torch FILE``.

The reference is the framework's own float64: no region, no scaler, no part of ampbridge. (NumPy has
no gradients of its own: there the model's float64 gradients are held against finite differences.)
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import traced_graphs
from nightly import NIGHTLY
from train import WORKLOADS

import ampbridge as amp
from ampbridge.workloads import digits, of_backend, weights

Arrays = list[np.ndarray]

# A power of two, so that the gradients can be read off a step of the optimizer without rounding
# them: a parameter's own value no longer counts beside 1024 times its gradient.
LEARNING_RATE = 1024.0
SCALE = 2.0**10

POLICIES = {"float16": amp.Policy("O1", "float16"), "bfloat16": amp.Policy("O1", "bfloat16")}
LINEAR_DENIED = {"linear denied": amp.Policy("O1", "float16", deny=["linear"])}


def main(framework: str, file: str) -> None:
    warnings.simplefilter("error", amp.AmpBridgeWarning)
    warnings.simplefilter("ignore", amp.SimulationWarning)  # Paddle has no 16-bit kernels on a CPU
    if framework == "torch" and not NIGHTLY:
        import_module("ampbridge_torch._private").inductor = traced_graphs.aot_eager
    measured = {workload: measure(framework, workload) for workload in WORKLOADS}
    Path(file).write_text(json.dumps(measured))


def measure(framework: str, workload: str) -> dict[str, Any]:
    native = of_backend(framework)
    batch = digits.load(workload)[0]
    x, y = batch.x[:128], batch.y[:128]

    def model() -> Any:
        return getattr(native, workload)(weights.make(workload, seed=0))

    loss, reference = REFERENCES[framework](native, model, x, y)
    policies = POLICIES | LINEAR_DENIED if workload == "mlp" else POLICIES
    modes = {"value_and_grad": by_value, "step": by_step}
    if framework != "numpy":
        modes["compiled step"] = by_compiled_step
    errors = {
        f"{mode}, {name}": error(gradients(native, model(), x, y, policy), reference)
        for mode, gradients in modes.items()
        for name, policy in policies.items()
    }
    return {"loss": loss, "norm": norm(reference), "errors": errors}


# -- the gradients in mixed precision, in three ways


def by_value(native: Any, model: Any, x: Any, y: Any, policy: amp.Policy) -> Arrays:
    scaler = amp.GradScaler(SCALE)
    _, grads = amp.value_and_grad(native.loss, model, x, y, policy=policy, scaler=scaler)
    return [as_array(grad) for grad in scaler.unscale(grads)]


def by_step(
    native: Any, model: Any, x: Any, y: Any, policy: amp.Policy, compile: bool = False
) -> Arrays:
    """The gradients that a step applied: momentum is zero before the first one."""
    optimizer = native.optimizer(model, learning_rate=LEARNING_RATE)
    step = amp.train_step(
        native.loss, model, optimizer, policy=policy, scaler=amp.GradScaler(SCALE), compile=compile
    )
    before = values(model)
    assert step(x, y).applied
    return [(b - a) / LEARNING_RATE for b, a in zip(before, values(model), strict=True)]


def by_compiled_step(native: Any, model: Any, x: Any, y: Any, policy: amp.Policy) -> Arrays:
    return by_step(native, model, x, y, policy, compile=True)


# -- the same in the framework's own float64


def torch_reference(native: Any, model: Callable[[], Any], x: Any, y: Any) -> tuple[float, Arrays]:
    import torch

    double = model().double()
    loss = native.loss(double, torch.from_numpy(in_float64(x)), torch.from_numpy(y))
    loss.backward()
    return loss.item(), [as_array(p.grad) for p in double.parameters()]


def tensorflow_reference(
    native: Any, model: Callable[[], Any], x: Any, y: Any
) -> tuple[float, Arrays]:
    import keras
    import tensorflow as tf

    keras.config.set_dtype_policy("float64")
    keras.config.set_floatx("float64")
    double = model()
    with tf.GradientTape() as tape:
        loss = native.loss(double, tf.constant(in_float64(x)), tf.constant(y))
    grads = tape.gradient(loss, double.trainable_variables)
    keras.config.set_dtype_policy("float32")
    keras.config.set_floatx("float32")
    return float(loss), [as_array(grad) for grad in grads]


def paddle_reference(native: Any, model: Callable[[], Any], x: Any, y: Any) -> tuple[float, Arrays]:
    import paddle

    double = model().to(dtype="float64")
    loss = native.loss(double, paddle.to_tensor(in_float64(x)), paddle.to_tensor(y))
    loss.backward()
    return loss.item(), [as_array(p.grad) for p in double.parameters() if not p.stop_gradient]


def jax_reference(native: Any, model: Callable[[], Any], x: Any, y: Any) -> tuple[float, Arrays]:
    import jax
    import jax.numpy as jnp
    from flax import nnx

    with jax.enable_x64(True):
        double = model()
        parameters = amp.backend(double).parameters(double)  # flax will sort its attributes
        nnx.update(double, jax.tree.map(lambda a: a.astype("float64"), nnx.state(double)))
        loss, grads = nnx.value_and_grad(native.loss)(double, jnp.asarray(in_float64(x)), y)
        nnx.update(double, grads)
        return float(loss), [as_array(p) for p in parameters]


def numpy_reference(native: Any, model: Callable[[], Any], x: Any, y: Any) -> tuple[float, Arrays]:
    from ampbridge_numpy import nn

    double = model()
    for _, module in double.named_modules():
        for name in list(module._own_parameters()):
            setattr(module, name, nn.Parameter(getattr(module, name).astype(np.float64)))
    x = in_float64(x)
    _, grads = amp.value_and_grad(native.loss, double, x, y, policy="O0")
    check_against_differences(lambda: float(native.loss(double, x, y)), double.parameters(), grads)
    return float(native.loss(double, x, y)), list(grads)


def check_against_differences(loss: Callable[[], float], parameters: Arrays, grads: Any) -> None:
    """The slope along some directions, by the loss on either side."""
    rng, distance = np.random.default_rng(0), 1e-6
    for _ in range(4):
        direction = [rng.standard_normal(p.shape) for p in parameters]
        sides = []
        for sign in (1, -2):  # one step ahead, two back
            for parameter, d in zip(parameters, direction, strict=True):
                parameter += sign * distance * d
            sides.append(loss())
        for parameter, d in zip(parameters, direction, strict=True):
            parameter += distance * d
        slope = sum(np.vdot(g, d) for g, d in zip(grads, direction, strict=True))
        np.testing.assert_allclose((sides[0] - sides[1]) / (2 * distance), slope, rtol=1e-5)


REFERENCES = {
    "numpy": numpy_reference,
    "torch": torch_reference,
    "tensorflow": tensorflow_reference,
    "paddle": paddle_reference,
    "jax": jax_reference,
}


# -- arrays


def in_float64(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) if x.dtype == np.float32 else x


def values(model: Any) -> Arrays:
    return [as_array(p) for p in amp.backend(model).parameters(model)]


def as_array(value: Any) -> np.ndarray:
    """A copy in float64 of a native tensor, of TensorFlow's sparse gradients too."""
    if type(value).__name__ == "IndexedSlices":
        import tensorflow as tf

        value = tf.convert_to_tensor(value)
    detached = value.detach() if hasattr(value, "detach") else value
    return np.asarray(detached).astype(np.float64)


def norm(arrays: Arrays) -> float:
    return float(np.sqrt(sum(np.vdot(a, a) for a in arrays)))


def error(grads: Arrays, reference: Arrays) -> float:
    """The distance relative to the reference, over all gradients together."""
    assert [g.shape for g in grads] == [r.shape for r in reference]
    return norm([g - r for g, r in zip(grads, reference, strict=True)]) / norm(reference)


if __name__ == "__main__":
    main(*sys.argv[1:])
