"""The conformance suite on Keras 3 on JAX, in a process of its own; ``test_keras.py`` runs this."""

import re

import jax
import keras
import numpy as np
import pytest

from ampbridge import UnsupportedError
from ampbridge_jax.model.keras_models import variable_of
from ampbridge_jax.testing import JaxHarness
from ampbridge_testing import BackendConformance, contents
from ampbridge_testing.harness import LayeredModel

# Keras copies arrays as NumPy 1 did.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

REFUSED = re.compile(
    r"loss_scale\[None\]|refused_with_another_optimizer_leaves|several_optimizers_are_decorated_together"
    r"|refused_where_one_keeps_weights_in_16_bits|without_master_weights_|ends_the_rounding_without_master"
    r"|weight_beyond_float16_is_named.*\[None-|value_and_grad_at_O1_follows_its_policy"
    r"|digits_that_training_had_are_told_of"
)
"""Weights without masters are refused, and at O1 a Dense adds its bias in float32."""


class Layered(LayeredModel, keras.Model):
    """The suite's model, of layers."""

    call = LayeredModel.forward

    def linear(self, inputs, outputs):
        return keras.layers.Dense(outputs)

    def layer_norm(self, width):
        return keras.layers.LayerNormalization(epsilon=1e-5)

    def relu(self, x):
        return keras.ops.relu(x)

    def fill(self, values):
        self(np.zeros((1, len(values[0])), np.float32))
        self.set_weights(values)


class KerasHarness(JaxHarness):
    """Keras' models and optimizers, and raw ops of JAX."""

    frameworks = ("jax", "flax", "optax", "keras")
    copies = False
    linear_kind = "Dense"
    layered = Layered

    def numpy(self, x):
        return np.array(x.value if isinstance(x, keras.Variable) else x)

    def model(self, weights):
        inner, outer = weights[0].shape[1], weights[2].shape[1]
        layers = [keras.layers.Dense(inner, activation="relu"), keras.layers.Dense(outer)]
        model = keras.Sequential([keras.Input(weights[0].shape[:1]), *layers])
        model.set_weights(weights)
        return model

    def hidden(self, model, x):
        return model.layers[0](x)

    def low_by_itself(self, weights, dtype):
        return self._under(f"mixed_{dtype}", weights)

    def in_16_bits(self, weights, dtype):
        return self._under(dtype, weights)

    def _under(self, policy, weights):
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(policy)
        try:
            return self.layered(weights, outputs=lambda y: keras.ops.cast(y, "float32"))
        finally:
            keras.config.set_dtype_policy(before)

    def details(self, model, optimizer):
        found = contents("optimizer", optimizer)
        for layer in [model, *model._flatten_layers(include_self=False)]:
            found |= {**contents(layer.name, layer), f"{layer.name} class": type(layer)}
        return found | {v.path: str(v.value.dtype) for v in model.variables}

    def parameters(self, model):
        return [variable_of(v) for v in model.trainable_variables]

    def optimizer(self, model, kind, rate, *others):
        if kind == "adam":
            optimizer = keras.optimizers.Adam(rate)
        else:
            optimizer = keras.optimizers.SGD(rate, momentum=0.9 if kind == "momentum" else 0.0)
        optimizer.build([v for each in (model, *others) for v in each.trainable_variables])
        return optimizer

    def freeze(self, model, optimizer):
        model.trainable = False

    def slots(self, optimizer):
        return [self.numpy(v) for v in optimizer.variables]

    def native_gradients(self, model, loss_fn, batch, scale):
        def loss(values):
            with keras.StatelessScope(zip(model.trainable_variables, values, strict=True)):
                return scale(loss_fn(model, *batch))

        return jax.grad(loss)([v.value for v in model.trainable_variables])


class TestKerasOnJax(BackendConformance):
    harness = KerasHarness()

    @pytest.fixture(autouse=True)
    def what_is_refused(self, request):
        if REFUSED.search(request.node.name):
            raises = (AssertionError, UnsupportedError)
            request.applymarker(pytest.mark.xfail(raises=raises, reason="see REFUSED"))
