"""Precision policies."""

from absl import logging
import tensorflow as tf


def get_precision(strategy: str, mixed_precision: bool = False):
    """Get the precision policy for a given strategy."""
    if mixed_precision:
        if strategy == 'tpu':
            return 'mixed_bfloat16'

        if tf.config.list_physical_devices('GPU'):
            return 'mixed_float16'

        logging.warning('float16 is not supported for CPU, use float32 instead')
        return 'float32'

    return 'float32'


def fp16_to_fp32_nested(input_nested):
    """Convert fp16 tensors in a nested structure to fp32."""
    if isinstance(input_nested, (list, tuple)):
        return type(input_nested)(fp16_to_fp32_nested(x) for x in input_nested)
    if isinstance(input_nested, dict):
        return {k: fp16_to_fp32_nested(v) for k, v in input_nested.items()}
    if isinstance(input_nested, tf.Tensor) and input_nested.dtype in (tf.bfloat16, tf.float16):
        return tf.cast(input_nested, tf.float32)
    return input_nested
