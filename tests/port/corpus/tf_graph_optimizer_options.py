import argparse

import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--amp", action="store_true")
args = parser.parse_args()

options = {"layout_optimizer": True}
options["auto_mixed_precision"] = args.amp
tf.config.optimizer.set_experimental_options(options)
grads, _ = tf.clip_by_global_norm(grads, clip_norm=0.5)
