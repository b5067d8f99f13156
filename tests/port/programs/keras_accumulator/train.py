"""Classification of tiles, by batches that are larger than what a GPU holds."""

import argparse
import os
from datetime import datetime

import tensorflow as tf
from gradient_accumulator import GradientAccumulateModel
from tensorflow.keras import mixed_precision
from tensorflow.keras.callbacks import CSVLogger, EarlyStopping, ModelCheckpoint
from tensorflow.keras.optimizers import Adam

from networks import get_network


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=str, default="./tiles")
    parser.add_argument("--batchsize", type=int, default=8, help="samples that are in memory")
    parser.add_argument("--accum", type=int, default=4, help="batches of a step")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--learningrate", type=float, default=1e-4)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--classes", type=int, default=5)
    return parser.parse_args()


def parse_example(record, size, classes):
    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }
    example = tf.io.parse_single_example(record, features)
    image = tf.io.decode_jpeg(example["image"], channels=3)
    image = tf.image.resize(image, (size, size)) / 255.0
    return image, tf.one_hot(example["label"], classes)


def get_dataset(args, split):
    files = tf.data.Dataset.list_files(os.path.join(args.data, split, "*.tfrecord"))
    data = tf.data.TFRecordDataset(files, num_parallel_reads=tf.data.AUTOTUNE)
    data = data.map(
        lambda record: parse_example(record, args.size, args.classes),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    if split == "train":
        data = data.shuffle(2048).repeat()
    return data.batch(args.batchsize, drop_remainder=True).prefetch(4)


def main():
    args = parse()
    name = "tiles_bs_{}_as_{}_{}".format(
        args.batchsize, args.accum, datetime.today().strftime("%d%m%y_%H%M")
    )
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)

    # mixed precision: faster, and less memory on GPUs with tensor cores
    mixed_precision.set_global_policy("mixed_float16")

    model = get_network((args.size, args.size, 3), args.classes)
    print(model.summary())

    # accumulated gradients, by a wrapper of the model
    model = GradientAccumulateModel(
        accum_steps=args.accum, mixed_precision=True, inputs=model.input, outputs=model.output
    )
    model.compile(
        optimizer=Adam(args.learningrate),
        loss="categorical_crossentropy",
        metrics=["categorical_accuracy"],
    )

    steps = 10000 // args.batchsize
    model.fit(
        get_dataset(args, "train"),
        steps_per_epoch=steps,
        epochs=args.epochs,
        validation_data=get_dataset(args, "val"),
        callbacks=[
            ModelCheckpoint("./models/" + name, monitor="val_loss", save_best_only=True),
            CSVLogger("./history/" + name + ".csv", append=True),
            EarlyStopping(monitor="val_loss", patience=20),
        ],
        verbose=1,
    )


if __name__ == "__main__":
    main()
