"""Step 2 of the guide, in a process with Paddle: new weights, for Paddle and for ampbridge."""

import argparse

import paddle
import yaml
from paddle import nn
from paddle_train import ResNet

import ampbridge as amp

parser = argparse.ArgumentParser()
parser.add_argument("-c", "--config", required=True)
args = parser.parse_args()
with open(args.config) as f:
    cfg = yaml.safe_load(f)

paddle.seed(cfg["seed"])
model = ResNet(cfg["model"]["widths"], cfg["model"]["blocks"])
paddle.save(model.state_dict(), "initial.pdparams")


def loss_fn(model, images, labels):
    return nn.functional.cross_entropy(model(images), labels)


optimizer = paddle.optimizer.SGD(parameters=model.parameters())
amp.train_step(loss_fn, model, optimizer, policy="O0").save("initial")
