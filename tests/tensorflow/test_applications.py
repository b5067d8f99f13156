"""A model of keras.applications, fitted beside Keras' own mixed precision."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from ampbridge.testing import import_or_skip

import_or_skip("tensorflow")
import keras  # noqa: E402

import ampbridge as amp  # noqa: E402

RANDOM = np.random.default_rng(0)
X = RANDOM.random((64, 32, 32, 3), dtype=np.float32)
Y = RANDOM.integers(0, 4, 64)


@cache
def losses(policy: str | amp.Policy | None) -> list[float]:
    """The losses of two epochs, under a dtype policy of Keras' or one of ours; None for float32."""
    keras.utils.clear_session()  # the same names: Grappler orders ops by them
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy if isinstance(policy, str) else "float32")
    try:
        model = keras.applications.MobileNetV3Small(
            weights=None,
            input_shape=(32, 32, 3),
            classes=4,
            alpha=0.35,
            minimalistic=True,
            include_preprocessing=False,
            classifier_activation=None,
        )
    finally:
        keras.config.set_dtype_policy("float32")
    if isinstance(policy, amp.Policy):
        amp.decorate(model, policy=policy)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05), loss)
    history = model.fit(X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0).history
    amp.undecorate(model)
    found: list[float] = history["loss"]
    return found


@pytest.mark.parametrize("level, dtype", [("O1", "float16"), ("O2", "bfloat16")])
def test_mobilenet_is_fitted_as_under_keras_own_policy(level: str, dtype: str) -> None:
    """The first epoch; by the second batch normalization has made much of every last bit."""
    native, full = losses(f"mixed_{dtype}"), losses(None)
    ours = losses(amp.Policy(level, dtype, execution="native"))
    assert np.isfinite(ours).all()
    assert ours[0] == pytest.approx(native[0], rel=1e-2)
    assert ours[0] != full[0]
