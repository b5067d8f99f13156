"""Train a language model of plain functions with jmp and optax."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jmp
import optax
from absl import app, flags
from data import batches
from lm import model

FLAGS = flags.FLAGS
flags.DEFINE_string("mp_policy", "p=f32,c=f16,o=f32", "The policy of jmp.")
flags.DEFINE_enum("mp_scale_type", "Dynamic", ["NoOp", "Static", "Dynamic"], "The loss scale.")
flags.DEFINE_float("mp_scale_value", 2**12, "The first loss scale.")
flags.DEFINE_bool("mp_skip_nonfinite", True, "Whether to skip steps that are not finite.")
flags.DEFINE_float("max_grad_value", 0.25, "Gradients are clipped to this value.")


class TrainState(NamedTuple):
    params: dict
    opt_state: optax.OptState
    loss_scale: jmp.LossScale


def get_policy():
    return jmp.get_policy(FLAGS.mp_policy)


def get_initial_loss_scale():
    cls = getattr(jmp, f"{FLAGS.mp_scale_type}LossScale")
    return cls(FLAGS.mp_scale_value) if cls is not jmp.NoOpLossScale else cls()


def make_optimizer():
    return optax.chain(optax.clip(FLAGS.max_grad_value), optax.adamw(3e-4, weight_decay=0.01))


def loss_fn(params, loss_scale, batch):
    policy = get_policy()
    logits = model.apply(policy.cast_to_compute(params), batch["tokens"])
    logits = policy.cast_to_output(logits)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()
    return loss_scale.scale(loss), loss


@jax.jit
def train_step(state, batch):
    params, opt_state, loss_scale = state
    grads, loss = jax.grad(loss_fn, has_aux=True)(params, loss_scale, batch)
    grads = loss_scale.unscale(get_policy().cast_to_param(grads))
    updates, new_opt_state = make_optimizer().update(grads, opt_state, params)
    new_params = optax.apply_updates(params, updates)
    if FLAGS.mp_skip_nonfinite:
        grads_finite = jmp.all_finite(grads)
        loss_scale = loss_scale.adjust(grads_finite)
        new_params, new_opt_state = jmp.select_tree(
            grads_finite, (new_params, new_opt_state), (params, opt_state)
        )
    return TrainState(new_params, new_opt_state, loss_scale), loss


def main(argv):
    params = model.init(jax.random.key(0), 1024, 256)
    state = TrainState(params, make_optimizer().init(params), get_initial_loss_scale())
    for number, batch in zip(range(10_000), batches()):
        state, loss = train_step(state, batch)
        if number % 100 == 0:
            print(number, loss)


if __name__ == "__main__":
    app.run(main)
