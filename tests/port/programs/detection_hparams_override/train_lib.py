"""The model with its training step, losses and optimizer."""

import tensorflow as tf

import utils


class FocalLoss(tf.keras.losses.Loss):
    def __init__(self, alpha, gamma, **kwargs):
        super().__init__(reduction=tf.keras.losses.Reduction.NONE, **kwargs)
        self.alpha = alpha
        self.gamma = gamma

    def call(self, y, y_pred):
        normalizer, y_true = y
        cross_entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels=y_true, logits=y_pred)
        pred_prob = tf.sigmoid(y_pred)
        p_t = y_true * pred_prob + (1 - y_true) * (1 - pred_prob)
        alpha_factor = y_true * self.alpha + (1 - y_true) * (1 - self.alpha)
        return alpha_factor * (1.0 - p_t) ** self.gamma * cross_entropy / normalizer


class BoxLoss(tf.keras.losses.Loss):
    def __init__(self, delta=0.1, **kwargs):
        super().__init__(**kwargs)
        self.huber = tf.keras.losses.Huber(delta, reduction=tf.keras.losses.Reduction.SUM)

    def call(self, y_true, box_outputs):
        num_positives, box_targets = y_true
        return self.huber(box_targets, box_outputs) / (num_positives * 4.0)


def get_optimizer(params):
    """Get optimizer."""
    learning_rate = tf.keras.optimizers.schedules.CosineDecay(
        params['learning_rate'] * params['batch_size'] / 64, params['num_epochs'] * params['steps_per_epoch'])
    momentum = params['momentum']
    if params['optimizer'].lower() == 'sgd':
        optimizer = tf.keras.optimizers.SGD(learning_rate, momentum=momentum)
    elif params['optimizer'].lower() == 'adam':
        optimizer = tf.keras.optimizers.Adam(learning_rate, beta_1=momentum)
    else:
        raise ValueError('optimizers should be adam or sgd')

    precision = utils.get_precision(params['strategy'], params['mixed_precision'])
    if precision == 'mixed_float16' and params['loss_scale']:
        optimizer = tf.keras.mixed_precision.LossScaleOptimizer(
            optimizer,
            initial_scale=params['loss_scale'])
    return optimizer


class EfficientDetNetTrain(tf.keras.Model):
    """A customized trainer for a one-stage detector."""

    def __init__(self, config, **kwargs):
        super().__init__(**kwargs)
        self.config = config
        conv = dict(padding='same', activation='swish')
        self.backbone = tf.keras.Sequential([
            tf.keras.layers.Conv2D(32, 3, 4, **conv),
            tf.keras.layers.BatchNormalization(),
            tf.keras.layers.SeparableConv2D(64, 3, 2, **conv),
            tf.keras.layers.BatchNormalization(),
        ], name='backbone')
        self.class_net = tf.keras.layers.SeparableConv2D(config.num_classes, 3, padding='same', name='class-predict')
        self.box_net = tf.keras.layers.SeparableConv2D(4, 3, padding='same', name='box-predict')

    def call(self, inputs, training=None):
        features = self.backbone(inputs, training=training)
        return self.class_net(features), self.box_net(features)

    def _reg_l2_loss(self, weight_decay):
        return weight_decay * tf.add_n([
            tf.nn.l2_loss(v) for v in self.trainable_variables if 'kernel' in v.name])

    def train_step(self, data):
        images, labels = data
        with tf.GradientTape() as tape:
            cls_outputs, box_outputs = utils.fp16_to_fp32_nested(self(images, training=True))
            loss_dtype = cls_outputs.dtype
            labels = utils.fp16_to_fp32_nested(labels)

            normalizer = tf.reduce_sum(labels['mean_num_positives']) + 1.0
            cls_loss = tf.reduce_sum(self.loss[FocalLoss.__name__]([normalizer, labels['cls_targets']], cls_outputs))
            box_loss = self.loss[BoxLoss.__name__]([normalizer, labels['box_targets']], box_outputs)
            total_loss = cls_loss + self.config.box_loss_weight * box_loss
            total_loss += tf.cast(self._reg_l2_loss(self.config.weight_decay), loss_dtype)
            if isinstance(self.optimizer, tf.keras.mixed_precision.LossScaleOptimizer):
                scaled_loss = self.optimizer.get_scaled_loss(total_loss)
            else:
                scaled_loss = total_loss
        trainable_vars = self.trainable_variables
        scaled_gradients = tape.gradient(scaled_loss, trainable_vars)
        if isinstance(self.optimizer, tf.keras.mixed_precision.LossScaleOptimizer):
            gradients = self.optimizer.get_unscaled_gradients(scaled_gradients)
        else:
            gradients = scaled_gradients
        loss_vals = {'loss': total_loss, 'cls_loss': cls_loss, 'box_loss': box_loss}
        if self.config.clip_gradients_norm > 0:
            clip_norm = abs(self.config.clip_gradients_norm)
            gradients, loss_vals['gradient_norm'] = tf.clip_by_global_norm(gradients, clip_norm)
        self.optimizer.apply_gradients(zip(gradients, trainable_vars))
        return loss_vals


def input_fn(file_pattern, params):
    """Images with dense label maps; random ones, without a pattern of files."""
    size, cells = params['image_size'], params['image_size'] // 8
    dataset = tf.data.Dataset.from_tensors(0).repeat()

    def parse(_):
        labels = {'cls_targets': tf.zeros([cells, cells, params['num_classes']]),
                  'box_targets': tf.random.uniform([cells, cells, 4]),
                  'mean_num_positives': tf.constant(10.0)}
        return tf.random.normal([size, size, 3]), labels

    return dataset.map(parse).batch(params['batch_size'], drop_remainder=True)
