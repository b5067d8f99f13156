"""Trains a registered experiment, as its configuration says.

    python train.py --experiment=resnet_small --config_file=configs/cifar_fp16.yaml \
        --params_override=trainer.train_steps=500
"""

import tensorflow as tf
from absl import app, flags, logging

from garden import hyperparams, performance
from garden.image_classification import ClassificationTask

FLAGS = flags.FLAGS
flags.DEFINE_string("experiment", "resnet_small", "A registered experiment.")
flags.DEFINE_multi_string("config_file", None, "YAML files; a later one overrides an earlier one.")
flags.DEFINE_string("params_override", "", "Comma separated key=value pairs, above the files.")
flags.DEFINE_string("model_dir", "/tmp/garden", "Where checkpoints go.")


def parse_configuration():
    params = hyperparams.get_exp_config(FLAGS.experiment)
    for path in FLAGS.config_file or ():
        params.override(hyperparams.read_yaml(path))
    if FLAGS.params_override:
        params.override(hyperparams.nested_dict(FLAGS.params_override))
    return params


def get_distribution_strategy(name, num_gpus):
    if name == "mirrored" and num_gpus > 1:
        return tf.distribute.MirroredStrategy([f"GPU:{i}" for i in range(num_gpus)])
    return tf.distribute.OneDeviceStrategy("GPU:0" if num_gpus else "CPU:0")


def main(_):
    params = parse_configuration()
    runtime = params.runtime
    # layers take the policy that is global when they are made
    if runtime.mixed_precision_dtype:
        performance.set_mixed_precision_policy(runtime.mixed_precision_dtype)
    strategy = get_distribution_strategy(runtime.distribution_strategy, runtime.num_gpus)

    with strategy.scope():
        task = ClassificationTask(params.task)
        model = task.build_model()
        optimizer = task.create_optimizer(params.trainer.optimizer_config, runtime)
    dataset = strategy.experimental_distribute_dataset(task.build_inputs(params.task.train_data))
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)

    @tf.function
    def train_loop_body(iterator):
        def step_fn(inputs):
            return task.train_step(inputs, model, optimizer, strategy.num_replicas_in_sync)

        losses = strategy.run(step_fn, args=(next(iterator),))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    iterator = iter(dataset)
    for step in range(1, params.trainer.train_steps + 1):
        loss = train_loop_body(iterator)
        if step % params.trainer.summary_interval == 0:
            logging.info("step %d: loss %.4f", step, float(loss))
    checkpoint.save(FLAGS.model_dir + "/ckpt")


if __name__ == "__main__":
    app.run(main)
