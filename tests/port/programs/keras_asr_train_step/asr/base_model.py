"""A model whose step adds up the gradients of several slices of a batch."""

import tensorflow as tf

from asr import env_util


class GradientAccumulator:
    def __init__(self, ga_steps):
        self.total_steps = ga_steps
        self.gradients = None

    def accumulate(self, gradients):
        gradients = [gradient / self.total_steps for gradient in gradients]
        if self.gradients is None:
            self.gradients = gradients
        else:
            self.gradients = [total + gradient for total, gradient in zip(self.gradients, gradients)]

    def reset(self):
        self.gradients = None


class SpeechModel(tf.keras.Model):
    def __init__(self, dim=144, blocks=4, vocab=29, **kwargs):
        super().__init__(**kwargs)
        self.project = tf.keras.layers.Dense(dim)
        conv = tf.keras.layers.Conv1D
        self.blocks = [conv(dim, 15, padding="same", activation="swish") for _ in range(blocks)]
        self.norms = [tf.keras.layers.LayerNormalization() for _ in range(blocks)]
        self.decoder = tf.keras.layers.Dense(vocab, dtype=tf.float32, name="logits")

    def call(self, features, training=False):
        x = self.project(features)
        for block, norm in zip(self.blocks, self.norms):
            x = x + block(norm(x))
        return self.decoder(x)

    def compile(self, loss, optimizer, mxp="none", ga_steps=None, micro_batch_size=1, **kwargs):
        optimizer = tf.keras.optimizers.get(optimizer)
        self.use_loss_scale = mxp != "none" and not env_util.has_devices("TPU")
        if self.use_loss_scale:
            optimizer = tf.keras.mixed_precision.LossScaleOptimizer(optimizer)
        self.ga = GradientAccumulator(ga_steps) if ga_steps and ga_steps > 1 else None
        self.micro_batch_size = micro_batch_size
        super().compile(optimizer=optimizer, loss=loss, **kwargs)

    def _train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
            if self.use_loss_scale:
                scaled_loss = self.optimizer.get_scaled_loss(loss)
        if self.use_loss_scale:
            gradients = tape.gradient(scaled_loss, self.trainable_variables)
            return loss, self.optimizer.get_unscaled_gradients(gradients)
        return loss, tape.gradient(loss, self.trainable_variables)

    def train_step(self, data):
        if self.ga is None:
            loss, gradients = self._train_step(data)
        else:
            for i in range(self.ga.total_steps):
                start = i * self.micro_batch_size
                part = tf.nest.map_structure(lambda x: x[start : start + self.micro_batch_size], data)
                loss, gradients = self._train_step(part)
                self.ga.accumulate(gradients)
            gradients = self.ga.gradients
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        if self.ga is not None:
            self.ga.reset()
        return {"loss": loss}
