"""Floating-point types and seeds, for the whole library."""

import random

import numpy as np
import tensorflow as tf


class Real:
    def __init__(self, precision):
        self.precision = None
        self.reals = None
        {16: self.set_float16, 32: self.set_float32, 64: self.set_float64}[precision]()

    def __call__(self, package):
        return self.reals[package]

    def set_float16(self):
        self.precision = 16
        self.reals = {np: np.float16, tf: tf.float16}

    def set_float32(self):
        self.precision = 32
        self.reals = {np: np.float32, tf: tf.float32}

    def set_float64(self):
        self.precision = 64
        self.reals = {np: np.float64, tf: tf.float64}


# Default float type
real = Real(32)
# Using mixed precision
mixed = False


def set_default_float(value):
    """Sets the default float type.

    Args:
        value (String): 'float16', 'float32', 'float64', or 'mixed' (mixed precision).
    """
    global mixed
    if value == "float16":
        print("Set the default float type to float16")
        real.set_float16()
    elif value == "float32":
        print("Set the default float type to float32")
        real.set_float32()
    elif value == "float64":
        print("Set the default float type to float64")
        real.set_float64()
    elif value == "mixed":
        print("Set the float type to mixed precision of float16 and float32")
        mixed = True
        real.set_float16()
        tf.keras.mixed_precision.set_global_policy("mixed_float16")
        return  # don't try to set it again below
    else:
        raise ValueError(f"{value} not supported")
    tf.keras.backend.set_floatx(value)


def set_random_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    tf.random.set_seed(seed)
