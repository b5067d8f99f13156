"""Pre-trains a discriminator of replaced tokens, one process a GPU.

    horovodrun -np 8 python run_pretraining.py --model_name small --num_train_steps 10000
"""

import argparse

import horovod.tensorflow as hvd
import tensorflow as tf

from optimization import GradientAccumulator, create_optimizer
from pretraining_config import PretrainingConfig


class Discriminator(tf.keras.Model):
    def __init__(self, config):
        super().__init__()
        self.embed = tf.keras.layers.Embedding(config.vocab_size, config.hidden_size)
        self.hidden = [tf.keras.layers.Dense(config.hidden_size, "gelu") for _ in range(config.num_layers)]
        self.norm = tf.keras.layers.LayerNormalization(epsilon=1e-6)
        self.head = tf.keras.layers.Dense(1, dtype="float32", name="replaced")

    def call(self, tokens, training=False):
        x = self.embed(tokens)
        for layer in self.hidden:
            x = x + layer(x)
        return tf.squeeze(self.head(self.norm(x)), -1)


@tf.function
def forward_backward(model, optimizer, features, amp):
    with tf.GradientTape() as tape:
        logits = model(features["tokens"], training=True)
        losses = tf.nn.sigmoid_cross_entropy_with_logits(features["replaced"], logits)
        total_loss = tf.reduce_mean(losses)
        unscaled_loss = tf.stop_gradient(total_loss)
        if amp:
            total_loss = optimizer.get_scaled_loss(total_loss)
    gradients = tape.gradient(total_loss, model.trainable_variables)
    if amp:
        gradients = optimizer.get_unscaled_gradients(gradients)
    return unscaled_loss, [tf.convert_to_tensor(gradient) for gradient in gradients]


def train_one_step(config, model, optimizer, features, accumulator, take_step, clip_norm=1.0):
    loss, gradients = forward_backward(model, optimizer, features, config.amp)
    accumulator(gradients)
    if take_step:
        steps = config.gradient_accumulation_steps
        averaged = [hvd.allreduce(g / tf.cast(steps, g.dtype)) for g in accumulator.gradients]
        (clipped, _) = tf.clip_by_global_norm(averaged, clip_norm=clip_norm)
        optimizer.apply_gradients(zip(clipped, model.trainable_variables))
        accumulator.reset()
    return loss


def batches(config):
    shape = (1024, config.max_seq_length)
    tokens = tf.random.stateless_uniform(shape, (hvd.rank(), 0), 0, config.vocab_size, tf.int32)
    replaced = tf.cast(tf.random.stateless_uniform(shape, (hvd.rank(), 1)) < config.mask_prob, tf.float32)
    dataset = tf.data.Dataset.from_tensor_slices({"tokens": tokens, "replaced": replaced})
    return dataset.repeat().batch(config.train_batch_size)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_name", required=True)
    parser.add_argument("--no_amp", dest="amp", action="store_false", default=None)
    parser.add_argument("--num_train_steps", type=int)
    parser.add_argument("--learning_rate", type=float)
    parser.add_argument("--train_batch_size", type=int)
    parser.add_argument("--gradient_accumulation_steps", type=int)
    parser.add_argument("--loss_scale_window", type=int)
    args = parser.parse_args()
    config = PretrainingConfig(**args.__dict__)

    hvd.init()
    gpus = tf.config.experimental.list_physical_devices("GPU")
    if gpus:
        tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    if config.amp:
        policy = tf.keras.mixed_precision.experimental.Policy("mixed_float16")
        tf.keras.mixed_precision.experimental.set_policy(policy)

    model = Discriminator(config)
    optimizer = create_optimizer(config)
    accumulator = GradientAccumulator()
    for step, features in enumerate(batches(config)):
        take_step = (step + 1) % config.gradient_accumulation_steps == 0
        loss = train_one_step(config, model, optimizer, features, accumulator, take_step)
        if step == 0:
            hvd.broadcast_variables(model.variables, root_rank=0)
        if take_step and hvd.rank() == 0:
            print(step, float(loss))
        if step + 1 == config.num_train_steps * config.gradient_accumulation_steps:
            break


if __name__ == "__main__":
    main()
