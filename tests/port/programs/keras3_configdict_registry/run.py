"""Trains a captioner: `python run.py --config=configs/caption.py --config.train.steps=1000`."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import tensorflow as tf
from absl import app, flags, logging
from ml_collections.config_flags import config_flags

from models import captioner  # noqa: F401  # registers
from models.registry import TrainerRegistry

flags.DEFINE_string("model_dir", "/tmp/captioner", "Where weights go.")
config_flags.DEFINE_config_file("config", "configs/caption.py", "The configuration.", lock_config=True)
FLAGS = flags.FLAGS

POLICIES = {"full": "float32", "half": "mixed_float16", "bfloat": "mixed_bfloat16"}


def get_dataset(config):
    shape = (config.dataset.examples, config.dataset.patches, config.model.dim)
    patches = tf.random.stateless_normal(shape, seed=(config.seed, 0))
    tokens = tf.random.stateless_uniform(
        (config.dataset.examples, config.dataset.length), (config.seed, 1), 0, config.model.vocab, tf.int32
    )
    dataset = tf.data.Dataset.from_tensor_slices((patches, tokens)).shuffle(1024).repeat()
    return dataset.batch(config.train.batch_size, drop_remainder=True)


def perform_training(config):
    keras.utils.set_random_seed(config.seed)
    keras.config.set_dtype_policy(POLICIES[config.train.precision])
    trainer = TrainerRegistry.lookup(config.model.name)(config)
    iterator = iter(get_dataset(config))
    for step in range(config.train.steps):
        loss = trainer.train_step(next(iterator))
        if step % config.train.log_every == 0:
            logging.info("step %d: loss %.4f", step, float(loss))
    trainer.model.save_weights(os.path.join(FLAGS.model_dir, "captioner.weights.h5"))


def main(_):
    tf.io.gfile.makedirs(FLAGS.model_dir)
    logging.info("%s", FLAGS.config)
    perform_training(FLAGS.config)


if __name__ == "__main__":
    app.run(main)
