"""TensorFlow's guide to mixed precision, with fit."""

import tensorflow as tf

from tensorflow import keras
from tensorflow.keras import layers
from tensorflow.keras import mixed_precision

policy = mixed_precision.Policy('mixed_float16')
mixed_precision.set_global_policy(policy)

inputs = keras.Input(shape=(784,), name='digits')
dense1 = layers.Dense(4096, activation='relu', name='dense_1')
x = dense1(inputs)
x = layers.Dense(10, name='dense_logits')(x)
outputs = layers.Activation('softmax', dtype='float32', name='predictions')(x)
model = keras.Model(inputs=inputs, outputs=outputs)
model.compile(loss='sparse_categorical_crossentropy',
              optimizer=keras.optimizers.RMSprop(),
              metrics=['accuracy'])
history = model.fit(x_train, y_train, batch_size=8192, epochs=5, validation_split=0.2)
