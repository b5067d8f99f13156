"""The level of decorate alone, out of a configuration that another file reads."""

import paddle
from mylib.log import logger


class Engine:
    def __init__(self, config, model, optimizer):
        self.amp = config["AMP"]["use_amp"]
        if self.amp:
            model, optimizer = paddle.amp.decorate(
                models=model, optimizers=optimizer, level=config["AMP"]["level"], save_dtype="float32"
            )
        self.model, self.optimizer = model, optimizer

    def evaluate(self, loader):
        accuracy = sum(self.model(image).mean() for image in loader)
        logger.scaler(name="accuracy", value=accuracy)  # a curve, not a loss scale
