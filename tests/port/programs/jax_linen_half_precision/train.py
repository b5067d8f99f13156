"""Train a residual net on one or more devices, in float16 on GPUs and in bfloat16 on TPUs."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import models
import optax
from absl import app, logging
from configs import default
from data import create_split
from flax import jax_utils
from flax.training import dynamic_scale as dynamic_scale_lib
from flax.training import train_state
from jax import lax

NUM_CLASSES = 1000


def create_model(*, model_cls, half_precision, **kwargs):
    platform = jax.local_devices()[0].platform
    if half_precision:
        if platform == "tpu":
            model_dtype = jnp.bfloat16
        else:
            model_dtype = jnp.float16
    else:
        model_dtype = jnp.float32
    return model_cls(num_classes=NUM_CLASSES, dtype=model_dtype, **kwargs)


def initialized(key, image_size, model):
    variables = jax.jit(model.init)({"params": key}, jnp.ones((1, image_size, image_size, 3), model.dtype))
    return variables["params"], variables["batch_stats"]


def cross_entropy_loss(logits, labels):
    one_hot = jax.nn.one_hot(labels, num_classes=NUM_CLASSES)
    return jnp.mean(optax.softmax_cross_entropy(logits=logits, labels=one_hot))


class TrainState(train_state.TrainState):
    batch_stats: Any
    dynamic_scale: dynamic_scale_lib.DynamicScale


def create_train_state(rng, config, model, image_size):
    dynamic_scale = None
    platform = jax.local_devices()[0].platform
    if config.half_precision and platform == "gpu":
        dynamic_scale = dynamic_scale_lib.DynamicScale(growth_interval=1000)
    params, batch_stats = initialized(rng, image_size, model)
    tx = optax.sgd(learning_rate=config.learning_rate, momentum=config.momentum, nesterov=True)
    return TrainState.create(
        apply_fn=model.apply,
        params=params,
        tx=tx,
        batch_stats=batch_stats,
        dynamic_scale=dynamic_scale,
    )


def train_step(state, batch):
    def loss_fn(params):
        variables = {"params": params, "batch_stats": state.batch_stats}
        logits, new_model_state = state.apply_fn(variables, batch["image"], mutable=["batch_stats"])
        return cross_entropy_loss(logits, batch["label"]), (new_model_state, logits)

    dynamic_scale = state.dynamic_scale
    if dynamic_scale:
        grad_fn = dynamic_scale.value_and_grad(loss_fn, has_aux=True, axis_name="batch")
        dynamic_scale, is_fin, aux, grads = grad_fn(state.params)
    else:
        grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
        aux, grads = grad_fn(state.params)
        grads = lax.pmean(grads, axis_name="batch")
    new_model_state, logits = aux[1]
    new_state = state.apply_gradients(grads=grads, batch_stats=new_model_state["batch_stats"])
    if dynamic_scale:
        keep = functools.partial(jnp.where, is_fin)
        new_state = new_state.replace(
            opt_state=jax.tree_util.tree_map(keep, new_state.opt_state, state.opt_state),
            params=jax.tree_util.tree_map(keep, new_state.params, state.params),
            dynamic_scale=dynamic_scale,
        )
    return new_state, {"loss": aux[0]}


def train_and_evaluate(config):
    model_cls = getattr(models, config.model)
    model = create_model(model_cls=model_cls, half_precision=config.half_precision)
    state = jax_utils.replicate(create_train_state(jax.random.key(0), config, model, 224))
    p_train_step = jax.pmap(train_step, axis_name="batch")
    for epoch in range(config.num_epochs):
        for batch in create_split("train", config.batch_size):
            state, metrics = p_train_step(state, batch)
        logging.info("epoch %d: %s", epoch, jax_utils.unreplicate(metrics))
    return state


def main(argv):
    train_and_evaluate(default.get_config())


if __name__ == "__main__":
    app.run(main)
