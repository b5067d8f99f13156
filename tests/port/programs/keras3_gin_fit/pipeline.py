"""What gin configures: precision, model, optimizer and training."""

import gin
import keras
import numpy as np
from keras import layers


@gin.configurable
def set_precision(policy="float32"):
    keras.config.set_dtype_policy(policy)


@gin.configurable
def build_model(channels=32, blocks=2, classes=88):
    inputs = keras.Input((128, 64, 1))
    x = inputs
    for block in range(blocks):
        x = layers.Conv2D(channels << block, 3, padding="same", activation="gelu")(x)
        x = layers.MaxPooling2D()(x)
    x = layers.GlobalAveragePooling2D()(x)
    x = layers.Dense(classes)(x)
    outputs = layers.Activation("sigmoid", dtype="float32", name="probabilities")(x)
    return keras.Model(inputs, outputs)


@gin.configurable
def build_optimizer(
    learning_rate=1e-3,
    weight_decay=0.01,
    global_clipnorm=None,
    gradient_accumulation_steps=None,
):
    return keras.optimizers.AdamW(
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        global_clipnorm=global_clipnorm,
        gradient_accumulation_steps=gradient_accumulation_steps,
        loss_scale_factor=1024.0,  # for float16: small gradients survive
    )


@gin.configurable
def train(model, optimizer, save_dir, epochs=10, batch_size=16, steps_per_execution=1):
    rng = np.random.default_rng(0)
    spectrograms = rng.normal(size=(256, 128, 64, 1)).astype("float32")
    notes = (rng.random((256, 88)) > 0.95).astype("float32")
    model.compile(
        optimizer=optimizer,
        loss="binary_crossentropy",
        steps_per_execution=steps_per_execution,
    )
    model.fit(
        spectrograms,
        notes,
        batch_size=batch_size,
        epochs=epochs,
        callbacks=[
            keras.callbacks.ModelCheckpoint(f"{save_dir}/last.keras"),
            keras.callbacks.TerminateOnNaN(),
        ],
    )
