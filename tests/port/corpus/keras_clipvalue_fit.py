from tensorflow import keras
from tensorflow.keras import layers

keras.mixed_precision.set_global_policy("mixed_float16")
inputs = keras.Input(shape=(784,), name="digits")
x = layers.Dense(4096, activation="relu", name="dense_1")(inputs)
outputs = layers.Dense(10, dtype="float32", name="predictions")(x)
model = keras.Model(inputs=inputs, outputs=outputs)
model.compile(
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    optimizer=keras.optimizers.Adam(learning_rate=0.001, clipvalue=0.5),
    metrics=["accuracy"],
)
model.fit(x_train, y_train, batch_size=8192, epochs=5, validation_split=0.2)
