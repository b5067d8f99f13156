import logging

import yaml
from paddle.optimizer.lr import LRScheduler


def setup_logger(log_file_path):
    formatter = logging.Formatter("%(asctime)s %(name)s %(levelname)s: %(message)s")
    logger = logging.getLogger("detection")
    for handler in (logging.StreamHandler(), logging.FileHandler(log_file_path)):
        handler.setFormatter(formatter)
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return logger


def save(file_path, data):
    with open(file_path, "w") as f:
        yaml.safe_dump(data, f)


class WarmupPolyLR(LRScheduler):
    def __init__(self, learning_rate, epochs, warmup_epoch=3, power=0.9, last_epoch=-1):
        self.epochs, self.warmup_epoch, self.power = epochs, warmup_epoch, power
        super().__init__(learning_rate, last_epoch)

    def get_lr(self):
        if self.last_epoch < self.warmup_epoch:
            return self.base_lr * (self.last_epoch + 1) / (self.warmup_epoch + 1)
        left = 1 - self.last_epoch / self.epochs
        return self.base_lr * max(left, 0.0) ** self.power
