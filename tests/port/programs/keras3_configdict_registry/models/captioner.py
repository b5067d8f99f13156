"""An encoder and a decoder, and the step that trains them."""

import keras
import tensorflow as tf
from keras import layers

from models.registry import TrainerRegistry


def build_model(config):
    patches = keras.Input((None, config.dim))
    tokens = keras.Input((None,), dtype="int32")
    memory = patches
    for _ in range(config.layers):
        attended = layers.MultiHeadAttention(config.heads, config.dim // config.heads)(memory, memory)
        memory = layers.LayerNormalization()(memory + attended)
    x = layers.Embedding(config.vocab, config.dim)(tokens)
    for _ in range(config.layers):
        attention = layers.MultiHeadAttention(config.heads, config.dim // config.heads)
        x = layers.LayerNormalization()(x + attention(x, x, use_causal_mask=True))
        pooled = layers.GlobalAveragePooling1D(keepdims=True)(memory)
        x = x + layers.Dense(config.dim, activation="gelu")(x + pooled)
    logits = layers.Dense(config.vocab, dtype="float32", name="to_vocabulary")(x)
    return keras.Model([patches, tokens], logits)


def build_optimizer(config):
    adamw = keras.optimizers.AdamW(config.learning_rate, weight_decay=config.weight_decay)
    return keras.optimizers.LossScaleOptimizer(
        adamw,
        initial_scale=2.0**config.loss_scale.log2_initial,
        dynamic_growth_steps=config.loss_scale.growth_steps,
    )


@TrainerRegistry.register("encoder_decoder")
class CaptionTrainer:
    def __init__(self, config):
        self.config = config
        self.model = build_model(config.model)
        self.optimizer = build_optimizer(config.optimization)
        self.optimizer.build(self.model.trainable_variables)
        self.loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def train_step(self, batch):
        patches, tokens = batch
        with tf.GradientTape() as tape:
            logits = self.model([patches, tokens[:, :-1]], training=True)
            loss = self.loss_fn(tokens[:, 1:], logits)
            scaled = self.optimizer.scale_loss(loss)
        variables = self.model.trainable_variables
        gradients = tape.gradient(scaled, variables)
        if self.config.optimization.max_norm > 0:
            gradients, _ = tf.clip_by_global_norm(gradients, self.config.optimization.max_norm)
        self.optimizer.apply(gradients, variables)
        return loss
