"""Devices and precision."""

import tensorflow as tf


def has_devices(kind):
    return len(tf.config.list_logical_devices(kind)) > 0


def setup_strategy(devices=None):
    gpus = tf.config.list_physical_devices("GPU")
    if devices:
        gpus = [gpus[index] for index in devices]
        tf.config.set_visible_devices(gpus, "GPU")
    if len(gpus) > 1:
        return tf.distribute.MirroredStrategy()
    return tf.distribute.get_strategy()


def setup_mxp(mxp: str = "strict"):
    """``mxp``: strict sets Keras' policy, auto lets Grappler rewrite the graph, none does neither."""
    if mxp not in ("strict", "auto", "none"):
        raise ValueError("mxp is strict, auto or none")
    if mxp == "strict":
        policy = "mixed_bfloat16" if has_devices("TPU") else "mixed_float16"
        tf.keras.mixed_precision.set_global_policy(policy)
        tf.get_logger().info(f"USING mixed precision policy {policy}")
    elif mxp == "auto":
        tf.config.optimizer.set_experimental_options({"auto_mixed_precision": True})
        tf.get_logger().info("USING auto mixed precision")
