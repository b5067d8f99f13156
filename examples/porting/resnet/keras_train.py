"""The trainer of paddle_train.py, carried over to Keras; -h lists its options."""

import argparse
import contextlib
import json
import logging
import math
import os

import amp_tf
import keras
import numpy as np
import tensorflow as tf
import yaml
from keras import layers
from sklearn.datasets import load_digits

logger = logging.getLogger("train")

TEST_SIZE = 597


# -- data


class Digits:
    """Images of 8 x 8 pixels from -1 to 1, channels last, and their labels."""

    def __init__(self, mode):
        digits = load_digits()
        order = np.random.RandomState(0).permutation(len(digits.target))
        chosen = order[TEST_SIZE:] if mode == "train" else order[:TEST_SIZE]
        self.images = (digits.images[chosen, ..., None] / 8 - 1).astype("float32")
        self.labels = digits.target[chosen].astype("int64")

    def batches(self, size, epoch=None):
        """Whole batches, in the order of Paddle's DistributedBatchSampler if an epoch is given."""
        order = np.arange(len(self.labels))
        if epoch is not None:
            np.random.RandomState(epoch).shuffle(order)
        for start in range(0, len(order) - size + 1, size):
            chosen = order[start : start + size]
            yield self.images[chosen], self.labels[chosen]


# -- model


def conv_bn(filters, kernel, stride=1):
    pad = layers.ZeroPadding2D(kernel // 2)  # padding="same" pads otherwise where the stride is 2
    conv = layers.Conv2D(filters, kernel, stride, use_bias=False, kernel_initializer="he_normal")
    return keras.Sequential([pad, conv, layers.BatchNormalization(momentum=0.9, epsilon=1e-5)])


class ResidualBlock(layers.Layer):
    def __init__(self, inputs, outputs, stride, **named):
        super().__init__(**named)
        self.conv1 = conv_bn(outputs, 3, stride)
        self.conv2 = conv_bn(outputs, 3)
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = conv_bn(outputs, 1, stride)

    def call(self, x, training=False):
        shortcut = x if self.shortcut is None else self.shortcut(x, training=training)
        x = keras.ops.relu(self.conv1(x, training=training))
        return keras.ops.relu(self.conv2(x, training=training) + shortcut)


def resnet(widths, blocks, classes=10):
    parts, inputs = [conv_bn(widths[0], 3), layers.ReLU()], widths[0]
    for stage, width in enumerate(widths):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            parts.append(ResidualBlock(inputs, width, stride))
            inputs = width
    parts += [layers.GlobalAveragePooling2D(), layers.Dense(classes)]
    return keras.Sequential([keras.Input((8, 8, 1)), *parts])


# -- optimizer, schedule, average


def build_optimizer(cfg):
    settings = cfg["optimizer"]
    optimizer = keras.optimizers.AdamW(
        learning_rate=0.0,  # set before each step
        weight_decay=settings["weight_decay"],
        epsilon=1e-8,
        global_clipnorm=settings["clip_norm"],
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return amp_tf.optimizer(optimizer)


class Schedule:
    """The learning rate of a step: Paddle's LinearWarmup, then its CosineAnnealingDecay."""

    def __init__(self, cfg, steps):
        self.rate = cfg["optimizer"]["learning_rate"]
        self.warmup = cfg["schedule"]["warmup_steps"]
        self.start = cfg["schedule"]["start_factor"] * self.rate
        self.steps = steps

    def __call__(self, step):
        if step < self.warmup:
            return self.start + (self.rate - self.start) * step / self.warmup
        done = (step - self.warmup) / (self.steps - self.warmup)
        return self.rate * (1 + math.cos(math.pi * done)) / 2


class ModelEMA(tf.Module):
    """The exponential moving average of all weights and statistics."""

    def __init__(self, model, decay):
        super().__init__()
        self.decay = decay
        self.step = tf.Variable(0)
        self.average = [tf.Variable(value) for value in model.weights]

    def update(self, model):
        step = int(self.step.assign_add(1))
        decay = min(self.decay, (1 + step) / (10 + step))
        for average, value in zip(self.average, model.weights, strict=True):
            average.assign(decay * average + (1 - decay) * value)

    @contextlib.contextmanager
    def applied_to(self, model):
        """The model has the averages in the block, and its own weights again after it."""
        own = model.get_weights()
        model.set_weights([average.numpy() for average in self.average])
        yield
        model.set_weights(own)


# -- training


class Trainer:
    def __init__(self, cfg, output, pretrained=None):
        self.cfg = cfg
        self.train_set, self.test_set = Digits("train"), Digits("test")
        self.accumulate = cfg["accumulate"]
        steps_per_epoch = len(self.train_set.labels) // cfg["micro_batch"] // self.accumulate
        self.schedule = Schedule(cfg, cfg["epochs"] * steps_per_epoch)
        self.model = resnet(cfg["model"]["widths"], cfg["model"]["blocks"])
        if pretrained is not None:
            self.model.load_weights(pretrained)
        self.criterion = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.optimizer = build_optimizer(cfg)
        self.optimizer.build(self.model.trainable_variables)
        self.train_step = self.build_step()
        self.ema = ModelEMA(self.model, cfg["ema"]["decay"])
        self.epoch, self.step = tf.Variable(0), tf.Variable(0)
        checkpoint = tf.train.Checkpoint(
            model=self.model,
            optimizer=self.optimizer,
            ema=self.ema,
            epoch=self.epoch,
            step=self.step,
        )
        self.checkpoints = tf.train.CheckpointManager(checkpoint, output, max_to_keep=1)
        self.history = []

    def build_step(self):
        @tf.function
        def train_step(images, labels):
            with tf.GradientTape() as tape:
                logits = self.model(images, training=True)
                loss = self.criterion(labels, logits)
                scaled_loss = self.optimizer.scale_loss(loss)
            gradients = tape.gradient(scaled_loss, self.model.trainable_variables)
            self.optimizer.apply(gradients, self.model.trainable_variables)
            return loss

        return train_step

    def train(self):
        for epoch in range(int(self.epoch), self.cfg["epochs"]):
            self.train_epoch(epoch)
            own = self.evaluate()
            with self.ema.applied_to(self.model):
                average = self.evaluate()
            logger.info("epoch %d: accuracy %.4f, of the average %.4f", epoch, own, average)
            self.save(epoch + 1)
        return {"history": self.history, "accuracy": own, "average_accuracy": average}

    def train_epoch(self, epoch):
        batches = self.train_set.batches(self.cfg["micro_batch"], epoch)
        for i, (images, labels) in enumerate(batches):
            rate = self.optimizer.learning_rate = self.schedule(int(self.step))
            scale = float(self.optimizer.dynamic_scale)
            loss = self.train_step(images, labels)
            if (i + 1) % self.accumulate == 0:
                self.step.assign_add(1)
                self.ema.update(self.model)
            self.history.append({"loss": float(loss), "scale": scale})
            if i % 20 == 0:
                logger.info("epoch %d, batch %d: loss %.4f, rate %.5f", epoch, i, loss, rate)

    def evaluate(self):
        """The share of the test images that are recognised."""
        right = 0
        for images, labels in self.test_set.batches(199):
            logits = self.model(images, training=False)
            right += int(np.sum(np.argmax(logits, 1) == labels))
        return right / TEST_SIZE

    def save(self, epoch):
        self.epoch.assign(epoch)
        self.checkpoints.save()

    def resume(self):
        self.checkpoints.restore_or_initialize()


def parse_args():
    parser = argparse.ArgumentParser(description="Train a ResNet on digits.")
    parser.add_argument("-c", "--config", required=True, help="a YAML file")
    parser.add_argument("--output", default="output", help="the folder of checkpoint and history")
    parser.add_argument("--pretrained", default=None, help="weights to start from, .weights.h5")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--eval", action="store_true", help="only evaluate the checkpoint")
    return parser.parse_args()


def main():
    args = parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    with open(args.config) as f:
        cfg = yaml.safe_load(f)
    keras.utils.set_random_seed(cfg["seed"])
    os.makedirs(args.output, exist_ok=True)
    trainer = Trainer(cfg, args.output, args.pretrained)
    if args.resume or args.eval:
        trainer.resume()
    if args.eval:
        logger.info("accuracy %.4f", trainer.evaluate())
        return
    result = trainer.train()
    with open(os.path.join(args.output, "history.json"), "w") as f:
        json.dump(result, f)


if __name__ == "__main__":
    main()
