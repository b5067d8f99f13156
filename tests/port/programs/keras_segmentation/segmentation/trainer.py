import time

import tensorflow as tf


class Trainer:
    """Steps and their measures; a LossScaleOptimizer where it computes in float16."""

    def __init__(self, using_fp16, loss_cfg, model, opt):
        self.using_fp16 = using_fp16
        self.model, self.opt = model, opt
        self.classes = loss_cfg["classes"]
        self.dice_weight = loss_cfg["dice_weight"]
        self.train_loss = tf.keras.metrics.Mean("train_loss")
        self.val_iou = tf.keras.metrics.MeanIoU(self.classes, name="val_iou")

    def loss(self, labels, logits):
        logits = tf.cast(logits, tf.float32)
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        one_hot = tf.one_hot(labels, self.classes)
        probability = tf.nn.softmax(logits)
        overlap = tf.reduce_sum(one_hot * probability, [1, 2])
        size = tf.reduce_sum(one_hot + probability, [1, 2])
        dice = 1.0 - tf.reduce_mean((2.0 * overlap + 1.0) / (size + 1.0))
        return tf.reduce_mean(entropy) + self.dice_weight * dice

    @tf.function
    def train_step(self, images, labels):
        with tf.GradientTape() as tape:
            logits = self.model(images, training=True)
            loss = self.loss(labels, logits)
            if self.using_fp16:
                scaled_loss = self.opt.get_scaled_loss(loss)
        if self.using_fp16:
            scaled_gradients = tape.gradient(scaled_loss, self.model.trainable_variables)
            gradients = self.opt.get_unscaled_gradients(scaled_gradients)
        else:
            gradients = tape.gradient(loss, self.model.trainable_variables)
        self.opt.apply_gradients(zip(gradients, self.model.trainable_variables))
        self.train_loss(loss)

    @tf.function
    def val_step(self, images, labels):
        logits = self.model(images, training=False)
        self.val_iou.update_state(labels, tf.argmax(logits, -1))

    def fit(self, train_ds, val_ds, epochs, validate_in, writer):
        step = 0
        for epoch in range(epochs):
            start = time.time()
            for images, labels in train_ds:
                self.train_step(images, labels)
                step += 1
                if step % validate_in == 0:
                    self.val_iou.reset_states()
                    for val_images, val_labels in val_ds:
                        self.val_step(val_images, val_labels)
                    with writer.as_default():
                        tf.summary.scalar("iou", self.val_iou.result(), step)
                        tf.summary.scalar("loss", self.train_loss.result(), step)
                    self.train_loss.reset_states()
            print("epoch {} in {:.1f}s".format(epoch, time.time() - start))
