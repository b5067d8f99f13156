"""Segmentation with TensorFlow 2.2, whose mixed precision is experimental."""

import json
import os

import tensorflow as tf

from segmentation.trainer import Trainer
from segmentation.unet import get_model

CONFIG = {
    "train": {
        "using_float16": True,
        "size": [512, 512],
        "classes": 19,
        "batch": 4,
        "epochs": 120,
        "validate_in": 500,
        "save_path": "./checkpoints",
    },
    "opt": {"using": "adam", "learning_rate": 1e-3, "momentum": 0.9},
    "loss": {"classes": 19, "dice_weight": 0.5},
}


def load_config(path="config.json"):
    if not os.path.exists(path):
        return CONFIG
    with open(path) as file:
        return json.load(file)


def make_dataset(folder, size, batch, shuffle):
    def load(name):
        image = tf.io.decode_png(tf.io.read_file(folder + "/images/" + name), channels=3)
        label = tf.io.decode_png(tf.io.read_file(folder + "/labels/" + name), channels=1)
        image = tf.image.resize(image, size) / 255.0
        label = tf.image.resize(label, size, method="nearest")
        return image, tf.cast(tf.squeeze(label, -1), tf.int32)

    data = tf.data.Dataset.from_tensor_slices(sorted(os.listdir(folder + "/images")))
    if shuffle:
        data = data.shuffle(1000)
    return data.map(load, num_parallel_calls=4).batch(batch, drop_remainder=True).prefetch(2)


def main():
    config = load_config()
    train_cfg, opt_cfg = config["train"], config["opt"]
    for gpu in tf.config.experimental.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)

    if opt_cfg["using"] == "adam":
        opt = tf.keras.optimizers.Adam(opt_cfg["learning_rate"])
    else:
        opt = tf.keras.optimizers.SGD(opt_cfg["learning_rate"], momentum=opt_cfg["momentum"])

    if train_cfg["using_float16"]:
        policy = tf.keras.mixed_precision.experimental.Policy("mixed_float16", loss_scale=1024)
        tf.keras.mixed_precision.experimental.set_policy(policy)
        opt = tf.keras.mixed_precision.experimental.LossScaleOptimizer(opt, loss_scale="dynamic")

    height, width = train_cfg["size"]
    model = get_model(height, width, train_cfg["classes"])
    trainer = Trainer(train_cfg["using_float16"], config["loss"], model, opt)
    train_ds = make_dataset("./data/train", train_cfg["size"], train_cfg["batch"], True)
    val_ds = make_dataset("./data/val", train_cfg["size"], train_cfg["batch"], False)
    writer = tf.summary.create_file_writer(os.path.join(train_cfg["save_path"], "logs"))
    trainer.fit(train_ds, val_ds, train_cfg["epochs"], train_cfg["validate_in"], writer)
    model.save_weights(os.path.join(train_cfg["save_path"], "final"))


if __name__ == "__main__":
    main()
