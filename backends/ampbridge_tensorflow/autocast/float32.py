"""``Policy.float32``: TensorFlow's switch of the process."""

from __future__ import annotations

import tensorflow as tf

from ampbridge.adapters.process_setting import Float32Setting

setting = Float32Setting(
    "tensorflow",
    tf.config.experimental.tensor_float_32_execution_enabled,
    lambda precision: tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32"),
    tf.config.experimental.enable_tensor_float_32_execution,
    lambda: "tf.function" if tf.inside_function() else "",
)
