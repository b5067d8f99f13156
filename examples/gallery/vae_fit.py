"""A variational autoencoder of handwritten digits, trained by Keras' ``compile`` and ``fit``.

    python vae_fit.py --policy O1 --log run.csv

"# ampbridge" ends each statement that ampbridge adds; --policy O0 trains in float32.
"""

import argparse

import keras
import numpy as np
from keras import layers, ops
from sklearn.datasets import load_digits

import ampbridge as amp  # ampbridge
from ampbridge_tensorflow import LossScaleOptimizer, ScaleLogs  # ampbridge

POLICIES = ("O0", "O1", "O1:bfloat16", "O2", "O2:bfloat16")
CODE = 8  # numbers that describe an image


class Sampling(layers.Layer):
    """Draws a code from the normal distribution that the encoder describes.

    The divergence of that distribution from the standard normal one is added to the model's loss.
    """

    def __init__(self, **named):
        super().__init__(**named)
        self.seed_generator = keras.random.SeedGenerator(0)

    def call(self, mean, log_variance):
        divergence = ops.square(mean) + ops.exp(log_variance) - log_variance - 1
        self.add_loss(ops.mean(ops.sum(divergence, axis=-1)) / 2)
        noise = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        return mean + ops.exp(log_variance / 2) * noise


def make_encoder():
    inputs = keras.Input((8, 8, 1))
    x = layers.Conv2D(32, 3, strides=2, padding="same", activation="gelu")(inputs)
    x = layers.Conv2D(64, 3, strides=2, padding="same", activation="gelu")(x)
    x = layers.Dense(128, activation="gelu")(layers.Flatten()(x))
    code = Sampling()(layers.Dense(CODE)(x), layers.Dense(CODE)(x))
    return keras.Model(inputs, code, name="encoder")


def make_decoder():
    inputs = keras.Input((CODE,))
    x = layers.Dense(128, activation="gelu")(inputs)
    x = layers.Reshape((2, 2, 64))(layers.Dense(2 * 2 * 64, activation="gelu")(x))
    x = layers.Conv2DTranspose(64, 3, strides=2, padding="same", activation="gelu")(x)
    x = layers.Conv2DTranspose(32, 3, strides=2, padding="same", activation="gelu")(x)
    return keras.Model(inputs, layers.Conv2D(1, 3, padding="same")(x), name="decoder")


def reconstruction(images, logits):
    """What the code does not tell of each image, in nats: the cross entropy of its pixels."""
    losses = ops.binary_crossentropy(images, logits, from_logits=True)
    return ops.sum(losses, axis=(1, 2, 3))


def generated(decoder, count):
    codes = np.random.default_rng(0).normal(size=(count, CODE)).astype("float32")
    return ops.convert_to_numpy(ops.sigmoid(decoder(codes)))[..., 0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--policy", default="O1", choices=POLICIES)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--log", action="append", default=[], metavar="FILE", help="a CSV file")
    parser.add_argument(
        "--samples", metavar="FILE", help="write generated digits to FILE, by np.save"
    )
    args = parser.parse_args()

    keras.utils.set_random_seed(0)
    images = load_digits().images[..., None].astype("float32") / 16
    train, test = images[600:], images[:600]

    encoder, decoder = make_encoder(), make_decoder()
    vae = keras.Model(encoder.input, decoder(encoder.output))
    optimizer = keras.optimizers.Adam(1e-3)
    amp.decorate(vae, policy=args.policy)  # ampbridge
    scaler = amp.GradScaler(growth_interval=100)  # ampbridge
    optimizer = LossScaleOptimizer(optimizer, scaler)  # ampbridge
    vae.compile(optimizer, loss=reconstruction, metrics=[reconstruction])

    callbacks = [keras.callbacks.CSVLogger(path) for path in args.log]
    callbacks.insert(0, ScaleLogs())  # ampbridge
    fitted = vae.fit(
        train,
        train,
        batch_size=64,
        epochs=args.epochs,
        validation_data=(test, test),
        callbacks=callbacks,
        verbose=2,
    )

    if args.samples:
        np.save(args.samples, generated(decoder, 64))
    last = {name: values[-1] for name, values in fitted.history.items()}
    print(f"test loss: {last['val_loss']:.2f} nats per image")
    print(f"of its pixels: {last['val_reconstruction']:.2f} nats")
    print(f"skipped steps: {sum(fitted.history['skipped_steps'])}")  # ampbridge


if __name__ == "__main__":
    main()
