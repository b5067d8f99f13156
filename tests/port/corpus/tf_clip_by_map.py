import tensorflow as tf

tf.config.optimizer.set_experimental_options({"auto_mixed_precision_onednn_bfloat16": True})


@tf.function
def update(batch):
    with tf.GradientTape() as tape:
        loss = model.loss(batch)
    gradients = map(lambda grad: tf.clip_by_value(grad, -200.0, 200.0), tape.gradient(loss, model.weights))
    opt.apply_gradients(zip(gradients, model.weights))


for batch in batches:
    update(batch)
