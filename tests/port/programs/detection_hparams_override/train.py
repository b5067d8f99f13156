"""python train.py --hparams=configs/voc_mixed.yaml --train_file_pattern=voc/*.tfrecord"""

from absl import app, flags, logging
import tensorflow as tf

import hparams_config
import train_lib
import utils

FLAGS = flags.FLAGS


def define_flags():
    """Define the flags."""
    flags.DEFINE_enum('strategy', 'gpus', ['tpu', 'gpus', ''], 'Training: gpus for multi-gpu, tpu for TPU.')
    flags.DEFINE_integer('batch_size', 64, 'training batch size')
    flags.DEFINE_string('model_name', 'efficientdet-d0', 'Model name.')
    flags.DEFINE_string('model_dir', None, 'Location of model_dir')
    flags.DEFINE_string('train_file_pattern', None, 'Glob for training data files.')
    flags.DEFINE_integer('num_examples_per_epoch', 5717, 'Number of examples in one epoch')
    flags.DEFINE_string(
        'hparams', '', 'Comma separated k=v pairs of hyperparameters or a module containing attributes to use.')
    flags.DEFINE_integer('tf_random_seed', 111111, 'Fixed random seed.')


def setup_model(model, config):
    """Build and compile model."""
    model.build((None, config.image_size, config.image_size, 3))
    model.compile(
        optimizer=train_lib.get_optimizer(config.as_dict()),
        loss={
            train_lib.BoxLoss.__name__: train_lib.BoxLoss(config.delta),
            train_lib.FocalLoss.__name__: train_lib.FocalLoss(config.alpha, config.gamma),
        })
    return model


def main(_):
    # Parse and override hparams
    config = hparams_config.get_detection_config(FLAGS.model_name)
    config.override(FLAGS.hparams)
    tf.random.set_seed(FLAGS.tf_random_seed)

    if FLAGS.strategy == 'tpu':
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        ds_strategy = tf.distribute.TPUStrategy(resolver)
    elif FLAGS.strategy == 'gpus':
        ds_strategy = tf.distribute.MirroredStrategy()
        logging.info('All devices: %s', tf.config.list_physical_devices('GPU'))
    else:
        ds_strategy = tf.distribute.OneDeviceStrategy('device:GPU:0')

    steps_per_epoch = FLAGS.num_examples_per_epoch // FLAGS.batch_size
    params = dict(
        model_name=FLAGS.model_name,
        model_dir=FLAGS.model_dir,
        steps_per_epoch=steps_per_epoch,
        strategy=FLAGS.strategy,
        batch_size=FLAGS.batch_size,
        num_shards=ds_strategy.num_replicas_in_sync)
    config.override(params, True)
    # set mixed precision policy by keras api.
    precision = utils.get_precision(config.strategy, config.mixed_precision)
    policy = tf.keras.mixed_precision.Policy(precision)
    tf.keras.mixed_precision.set_global_policy(policy)

    with ds_strategy.scope():
        model = train_lib.EfficientDetNetTrain(config=config)
        model = setup_model(model, config)
        model.fit(
            train_lib.input_fn(FLAGS.train_file_pattern, config.as_dict()),
            epochs=config.num_epochs,
            steps_per_epoch=steps_per_epoch)


if __name__ == '__main__':
    define_flags()
    logging.set_verbosity(logging.INFO)
    app.run(main)
