"""Trains a speech recognizer.

    python train.py --config_path=configs/conformer_small.yml --modeldir=/models/small
"""

import fire
import tensorflow as tf

from asr import env_util
from asr.base_model import SpeechModel
from asr.configs import Config


def speech(batch_size, frames=400):
    features = tf.random.stateless_normal((256, frames, 80), seed=(0, 1))
    labels = tf.random.stateless_uniform((256, frames), (0, 2), 0, 29, tf.int32)
    dataset = tf.data.Dataset.from_tensor_slices((features, labels)).shuffle(256).repeat()
    return dataset.batch(batch_size, drop_remainder=True)


def main(
    config_path: str,
    modeldir: str = "/tmp/asr",
    bs: int = None,
    spx: int = 1,
    devices: list = None,
    mxp: str = "strict",
    jit_compile: bool = False,
    ga_steps: int = None,
):
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(42)
    strategy = env_util.setup_strategy(devices)
    env_util.setup_mxp(mxp)

    config = Config(config_path, modeldir=modeldir)
    learning = config.learning_config
    bs = bs or learning.batch_size
    ga_steps = ga_steps or learning.ga_steps

    with strategy.scope():
        model = SpeechModel(**config.model_config)
        model.compile(
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            optimizer=learning.optimizer_config,
            steps_per_execution=spx,
            jit_compile=jit_compile,
            mxp=mxp,
            ga_steps=ga_steps,
            micro_batch_size=bs,
        )
    model.fit(
        speech(bs * (ga_steps or 1)),
        epochs=learning.num_epochs,
        steps_per_epoch=learning.steps_per_epoch,
        callbacks=[tf.keras.callbacks.BackupAndRestore(f"{modeldir}/states")],
    )


if __name__ == "__main__":
    fire.Fire(main)
