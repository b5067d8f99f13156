"""The task: a small residual network on random images."""

import tensorflow as tf
import tf_keras

from garden import performance

_OPTIMIZERS = {
    "sgd": lambda c: tf_keras.optimizers.SGD(c.learning_rate, momentum=c.momentum),
    "adam": lambda c: tf_keras.optimizers.Adam(c.learning_rate),
}


class ClassificationTask:
    def __init__(self, task_config):
        self.task_config = task_config

    def build_model(self):
        layers, config = tf_keras.layers, self.task_config
        size = config.train_data.image_size
        inputs = tf_keras.Input((size, size, 3))
        x = layers.Conv2D(config.width, 3, padding="same")(inputs)
        for _ in range(3):
            y = layers.Conv2D(config.width, 3, padding="same", use_bias=False)(x)
            y = layers.ReLU()(layers.BatchNormalization()(y))
            x = layers.Add()([x, y])
        x = layers.GlobalAveragePooling2D()(x)
        logits = layers.Dense(config.num_classes, dtype="float32", name="logits")(x)
        return tf_keras.Model(inputs, logits)

    def create_optimizer(self, optimizer_config, runtime_config=None):
        optimizer = _OPTIMIZERS[optimizer_config.type](optimizer_config)
        if runtime_config:
            optimizer = performance.configure_optimizer(
                optimizer,
                use_float16=runtime_config.mixed_precision_dtype == "float16",
                loss_scale=runtime_config.loss_scale,
            )
        return optimizer

    def build_inputs(self, data):
        images = tf.random.stateless_uniform((512, data.image_size, data.image_size, 3), (data.seed, 1))
        labels = tf.random.stateless_uniform((512,), (data.seed, 2), 0, 10, tf.int32)
        dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(512).repeat()
        return dataset.batch(data.global_batch_size, drop_remainder=True)

    def train_step(self, inputs, model, optimizer, num_replicas):
        features, labels = inputs
        with tf.GradientTape() as tape:
            logits = model(features, training=True)
            losses = tf_keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            # gradients of replicas are summed
            scaled_loss = loss = tf.reduce_mean(losses) / num_replicas
            if isinstance(optimizer, tf_keras.mixed_precision.LossScaleOptimizer):
                scaled_loss = optimizer.get_scaled_loss(loss)
        tvars = model.trainable_variables
        grads = tape.gradient(scaled_loss, tvars)
        if isinstance(optimizer, tf_keras.mixed_precision.LossScaleOptimizer):
            grads = optimizer.get_unscaled_gradients(grads)
        if self.task_config.gradient_clip_norm > 0:
            grads, _ = tf.clip_by_global_norm(grads, self.task_config.gradient_clip_norm)
        optimizer.apply_gradients(list(zip(grads, tvars)))
        return loss
