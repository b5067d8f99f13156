"""The high-level API: amp_configs of prepare(), by a flag."""

import argparse

import paddle
from paddle.vision.models import resnet50

parser = argparse.ArgumentParser("Training of ResNet by hapi")
parser.add_argument("--amp", action="store_true")
parser.add_argument("--amp-level", default="O1", choices=["O1", "O2"])
parser.add_argument("--device", type=str, default="gpu")
parser.add_argument("--eval-only", action="store_true")
FLAGS = parser.parse_args()


def main():
    paddle.set_device(FLAGS.device)
    model = paddle.Model(resnet50(num_classes=100))
    optim = paddle.optimizer.Momentum(0.1, parameters=model.parameters())
    amp_configs = None
    if FLAGS.amp:
        amp_configs = {
            "level": FLAGS.amp_level,
            "init_loss_scaling": 128.0,
            "custom_black_list": {"softmax"},
        }
    model.prepare(
        optim,
        paddle.nn.CrossEntropyLoss(),
        paddle.metric.Accuracy(topk=(1, 5)),
        amp_configs=amp_configs,
    )
    if FLAGS.eval_only:
        model.evaluate(val_dataset, batch_size=64)
        return
    model.fit(train_dataset, val_dataset, batch_size=64, epochs=90)


if __name__ == "__main__":
    main()
