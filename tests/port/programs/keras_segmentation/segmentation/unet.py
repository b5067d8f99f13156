import tensorflow as tf
from tensorflow.keras import layers


def block(x, filters):
    for _ in range(2):
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        x = layers.ReLU()(x)
    return x


def get_model(height, width, classes, filters=32, depth=4):
    inputs = tf.keras.Input([height, width, 3])
    x, skips = inputs, []
    for level in range(depth):
        x = block(x, filters * 2**level)
        skips.append(x)
        x = layers.MaxPool2D()(x)
    x = block(x, filters * 2**depth)
    for level in reversed(range(depth)):
        x = layers.Conv2DTranspose(filters * 2**level, 2, strides=2)(x)
        x = block(layers.Concatenate()([x, skips[level]]), filters * 2**level)
    logits = layers.Conv2D(classes, 1, name="logits")(x)
    return tf.keras.Model(inputs, logits)
