"""Step 2 of the guide, in a process with TensorFlow: the same weights for Keras."""

import argparse

import yaml
from keras_float32 import resnet

import ampbridge as amp

parser = argparse.ArgumentParser()
parser.add_argument("-c", "--config", required=True)
args = parser.parse_args()
with open(args.config) as f:
    cfg = yaml.safe_load(f)

model = resnet(cfg["model"]["widths"], cfg["model"]["blocks"])
print(amp.load_weights("initial", model))
model.save_weights("initial.weights.h5")
