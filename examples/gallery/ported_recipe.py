"""Classify handwritten digits in Keras, in the mixed precision of a Paddle script.

    python ported_recipe.py --log run.csv

"# ampbridge" ends each statement that ported/amp_tf.py adds, the module that ampbridge has written.
"""

import argparse
import csv

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from ported import amp_tf  # ampbridge
from sklearn.datasets import load_digits


def batches(images, labels, steps, size=64):
    draw = np.random.default_rng(0)
    for _ in range(steps):
        chosen = draw.integers(len(labels), size=size)
        yield images[chosen], labels[chosen]


def dense(inputs, outputs, draw):
    weight = draw.normal(0, (2 / inputs) ** 0.5, (inputs, outputs)).astype("float32")
    initial = keras.initializers.Constant(weight)
    return layers.Dense(outputs, kernel_initializer=initial)


def gelu():
    return layers.Activation("gelu", dtype="float32")  # ampbridge


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--log", metavar="FILE", help="a CSV file")
    args = parser.parse_args()

    digits = load_digits()
    images, labels = (digits.data / 8 - 1).astype("float32"), digits.target.astype("int64")
    draw = np.random.default_rng(1)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            dense(64, 256, draw),
            gelu(),
            layers.LayerNormalization(epsilon=1e-5),
            dense(256, 256, draw),
            gelu(),
            layers.LayerNormalization(epsilon=1e-5),
            dense(256, 10, draw),
        ]
    )
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(0.005, momentum=0.9)
    optimizer = amp_tf.optimizer(optimizer)  # ampbridge
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_fn(y, model(x, training=True))
            scaled_loss = optimizer.scale_loss(loss)  # ampbridge
        gradients = tape.gradient(scaled_loss, model.trainable_variables)  # ampbridge
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    rows = []
    for x, y in batches(images[600:], labels[600:], args.steps):
        scale = float(optimizer.dynamic_scale)  # ampbridge
        row = {"loss": float(step(x, y))}
        skipped = len(rows) + 1 - int(optimizer.iterations)  # ampbridge
        row |= {"scale": scale, "skipped": skipped}  # ampbridge
        rows.append(row)
        if len(rows) % 100 == 0:
            print(f"step {len(rows):4d}  loss {row['loss']:.3f}", flush=True)

    if args.log:
        with open(args.log, "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    found = np.argmax(model.predict(images[:600], verbose=0), axis=1)
    print(f"accuracy: {(found == labels[:600]).mean():.1%}")
    print(f"skipped steps: {skipped}")  # ampbridge


if __name__ == "__main__":
    main()
