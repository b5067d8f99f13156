from tensorflow.keras import Input, Model
from tensorflow.keras.layers import (
    Activation,
    BatchNormalization,
    Conv2D,
    Dense,
    Dropout,
    GlobalAveragePooling2D,
    MaxPooling2D,
)


def conv_block(x, filters, dropout):
    for _ in range(2):
        x = Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = BatchNormalization()(x)
        x = Activation("relu")(x)
    x = MaxPooling2D()(x)
    return Dropout(dropout)(x) if dropout else x


def get_network(input_shape, num_classes, filters=(32, 64, 128, 256), dropout=0.1):
    inputs = Input(input_shape)
    x = inputs
    for width in filters:
        x = conv_block(x, width, dropout)
    x = GlobalAveragePooling2D()(x)
    x = Dense(128, activation="relu")(x)
    x = Dense(num_classes, name="logits")(x)
    outputs = Activation("softmax", dtype="float32", name="predictions")(x)
    return Model(inputs, outputs)
