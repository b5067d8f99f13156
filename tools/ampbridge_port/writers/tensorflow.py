"""Recipes as modules for TensorFlow and Keras 3.

A module has one of three shapes: a dtype policy and Keras' own LossScaleOptimizer, where that has the
recipe's rule; a subclass of it with a rule of its own; and one that adds up micro-batches, on top of
either. A schedule of policies is written with ampbridge: Keras' layers have one policy for good.
"""

from __future__ import annotations

import json

from ampbridge.policies.policy import Policy
from ampbridge.training.recipe import Recipe
from ampbridge_port.writers import Target, ampbridge, code
from ampbridge_port.writers import tensorflow_losses as losses
from ampbridge_port.writers import tensorflow_scaler as scaler
from ampbridge_port.writers.code import (
    Comments,
    commented,
    constants,
    fill,
    laid_out,
    literal,
    program,
)

HEADER = '''\
"""Mixed precision for TensorFlow and Keras 3. Import this file before the model is made.

    optimizer = amp_tf.optimizer(keras.optimizers.SGD(0.01))
    $set_precision
    model.compile(optimizer, loss$auto_scale_loss)  # and fit; or in a loop of your own:
    $loop

The weights are model.trainable_variables. What optimizer.variables holds is saved with the model.
"""

$imports

$constants
$policy
'''

SCALED_LOOP = """\
scaled_loss = optimizer.scale_loss(loss)  # under the tape, of each $batch
optimizer.apply(tape.gradient(scaled_loss, weights), weights)
"""

LOOP = "optimizer.apply(tape.gradient(loss, weights), weights)"

GRAPH_OPTIMIZER = """\
# TensorFlow's graph optimizer casts op by op, in tf.function on a GPU; not eagerly, and not under XLA.
tf.config.optimizer.set_experimental_options({"auto_mixed_precision": True})
"""

SET_PRECISION = '''\
def set_precision(model):
    """Float32 for the layers that the recipe denies, once the model has been made."""
    for layer in model._flatten_layers():
        if isinstance(layer, FLOAT32_LAYERS):
            for part in layer._flatten_layers():
                part.dtype_policy = "float32"
'''

SET_PRECISION_BY_NAME = '''\
def set_precision(model):
    """Float32 for the layers that the recipe $which, once the model has been made."""
    missing = set(KEPT)
    for layer in model._flatten_layers():
        names = {layer.name, type(layer).__name__}
        missing -= names
        if $condition:
            for part in layer._flatten_layers():
                part.dtype_policy = "float32"
    if missing:
        raise ValueError(f"no layer of the model has the name or class {missing}")
'''

OPTIMIZER = '''\
def optimizer(inner):
    """``inner``, an optimizer of Keras, $how."""
    $settings
    return $made
'''

CLIP = {
    "clip_norm": "inner.global_clipnorm = CLIP_NORM",
    "clip_each_norm": "inner.clipnorm = CLIP_EACH_NORM",
    "clip_value": "inner.clipvalue = CLIP_VALUE",
}

DEMO = """\
model = keras.Sequential(
    [keras.Input((32,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(8)]
)
$set_precision
model.compile(optimizer(keras.optimizers.SGD(0.01)), "mse"$auto_scale_loss)
x = np.random.default_rng(0).standard_normal((1600, 32), dtype=np.float32)
model.fit(x, x[:, :8] - x[:, 8:16], batch_size=16, epochs=3)
"""


def _native(recipe: Recipe, comments: Comments, with_demo: bool) -> str:
    policy, set_precision = _policy(recipe.policy, comments), _set_precision(recipe.policy)
    body = [set_precision, *scaler.classes(recipe), _optimizer(recipe)]
    unscaled = recipe.scaler is None and recipe.policy.dtype == "float16"
    compiled = {"auto_scale_loss": ", auto_scale_loss=False" if unscaled else ""}
    if with_demo:
        kept = losses.kept(recipe.policy)  # layers that the model of the demo does not have
        set_it = "set_precision(model)" if set_precision and not kept else ""
        body.append(code.demo(body=fill(DEMO, set_precision=set_it, **compiled)))
    batch = "batch" if recipe.accumulate == 1 else "micro-batch"
    head = fill(
        HEADER,
        set_precision="amp_tf.set_precision(model)" if set_precision else "",
        loop=fill(SCALED_LOOP, batch=batch) if recipe.scaler else LOOP,
        imports=_imports("".join([policy, *body])),
        constants=constants(recipe, comments, scaler.numbers(recipe.scaler)),
        policy=policy,
        **compiled,
    )
    return program(head, *body)


def _imports(body: str) -> str:
    names = {"np.": "import numpy as np", "tf.": "import tensorflow as tf"}
    lines = ["import keras", *(line for name, line in names.items() if name in body)]
    return "\n".join([*lines, *["from keras import ops"] * (" ops." in body)])


def _policy(policy: Policy, comments: Comments) -> str:
    """The dtype policy of all layers, and those that the recipe's own lists deny or keep."""
    said = comments.get("policy.level") or comments.get("policy.dtype", "")
    if losses.is_graph_optimizer(policy):
        return GRAPH_OPTIMIZER
    name = "float32" if policy.level == "O0" else f"mixed_{policy.dtype}"
    text = commented(f"keras.config.set_dtype_policy({json.dumps(name)})", said)
    if layers := losses.float32_layers(policy):
        names = [f"keras.layers.{name}" for name in layers]
        line = laid_out("FLOAT32_LAYERS = (", names, ",)" if len(names) == 1 else ")")
        text += commented(line, comments.get("policy.deny", ""))
    if kept := losses.kept(policy):
        line = laid_out("KEPT = {", [literal(name) for name in kept], "}")
        text += commented(line, comments.get("policy.keep", ""))
    return text


def _set_precision(policy: Policy) -> str:
    denies = bool(losses.float32_layers(policy))
    if not losses.kept(policy):
        return SET_PRECISION if denies else ""
    condition = "names & KEPT or isinstance(layer, FLOAT32_LAYERS)" if denies else "names & KEPT"
    which = "denies or keeps" if denies else "keeps"
    return fill(SET_PRECISION_BY_NAME, condition=condition, which=which)


def _optimizer(recipe: Recipe) -> str:
    how = "with the recipe's loss scaling" if recipe.scaler else "with the recipe's settings"
    settings = "\n".join(_settings(recipe))
    return fill(OPTIMIZER, how=how, settings=settings, made=scaler.made(recipe))


def _settings(recipe: Recipe) -> list[str]:
    """What Keras' optimizers do by themselves, with unscaled gradients."""
    lines = [CLIP[recipe.clipping.name]] if recipe.clipping else []
    if recipe.accumulate > 1 and not scaler.adds_up(recipe):
        lines.append("inner.gradient_accumulation_steps = ACCUMULATE")
    return lines


# -- with ampbridge

COMPILE = '''\
def compile_model(model, optimizer, loss, **arguments):
    """``model.compile`` by the recipe, for Keras' fit."""
    amp.decorate(model, policy=RECIPE.policy)
    $settings
    scaler = $scaler
    optimizer = ampbridge_tensorflow.LossScaleOptimizer(optimizer, scaler)
    model.compile(optimizer, loss, **arguments)
'''

MODEL = """\
layers = [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(8)]
model = keras.Sequential([keras.Input((32,)), *layers])
mse_loss, optimizer = keras.losses.MeanSquaredError(), keras.optimizers.SGD(0.01)
"""


def _with_ampbridge(recipe: Recipe, comments: Comments, with_demo: bool) -> str:
    recipe = losses.honoured(recipe)
    sections = [] if scaler.adds_up(recipe) or recipe.schedule else [_compile(recipe)]
    imports = ["import ampbridge_tensorflow"] * len(sections) + ["import keras"] * with_demo
    if with_demo:
        loss = "mse_loss(y, model(x, training=True))"
        sections.append(ampbridge.demo(recipe, MODEL, loss))
    return ampbridge.module(
        recipe, comments, "Keras 3", *sections, imports=imports, lacks=losses.lacks(recipe)
    )


def _compile(recipe: Recipe) -> str:
    """For fit, which has one policy, and drops micro-batches where a recipe may drop whole steps."""
    settings = (line.replace("inner.", "optimizer.").partition(" = ") for line in _settings(recipe))
    unscaled = "amp.GradScaler(init_scale=1.0, dynamic=False)  # which skips what overflows"
    return fill(
        COMPILE,
        settings="\n".join(f"{name} = RECIPE.{value.lower()}" for name, _, value in settings),
        scaler="RECIPE.scaler.make()" if recipe.scaler else unscaled,
    )


TARGET = Target(_native, _with_ampbridge, losses.lacks, losses.native, losses.with_ampbridge)
