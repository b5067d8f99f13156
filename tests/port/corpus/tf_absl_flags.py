"""Options of absl: their defaults hold, unless the command line says otherwise."""

import tensorflow as tf
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_bool("fp16", False, "mixed precision")
flags.DEFINE_float("loss_scale", 128.0, "a fixed scale")


def main(_):
    if FLAGS.fp16:
        tf.keras.mixed_precision.set_global_policy("mixed_float16")
        optimizer = tf.keras.mixed_precision.LossScaleOptimizer(
            tf.keras.optimizers.Adam(), dynamic=False, initial_scale=FLAGS.loss_scale
        )
    else:
        optimizer = tf.keras.optimizers.Adam()
    return optimizer


if __name__ == "__main__":
    app.run(main)
