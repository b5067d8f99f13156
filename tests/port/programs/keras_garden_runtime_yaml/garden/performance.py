"""Settings that make training faster."""

import tf_keras


def configure_optimizer(optimizer, use_float16=False, loss_scale=None):
    """The optimizer, with loss scaling if it trains in float16."""
    if use_float16:
        if loss_scale in (None, "dynamic"):
            optimizer = tf_keras.mixed_precision.LossScaleOptimizer(optimizer)
        else:
            optimizer = tf_keras.mixed_precision.LossScaleOptimizer(
                optimizer, dynamic=False, initial_scale=loss_scale
            )
    return optimizer


def set_mixed_precision_policy(dtype):
    """Sets the policy of all layers that are made from here on."""
    if dtype == "float16":
        tf_keras.mixed_precision.set_global_policy("mixed_float16")
    elif dtype == "bfloat16":
        tf_keras.mixed_precision.set_global_policy("mixed_bfloat16")
    elif dtype == "float32":
        tf_keras.mixed_precision.set_global_policy("float32")
    else:
        raise ValueError(f"Unexpected dtype: {dtype}")
