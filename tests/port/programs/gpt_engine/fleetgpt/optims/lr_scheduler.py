import math

from paddle.optimizer.lr import LRScheduler

__all__ = ["CosineAnnealingWithWarmupDecay", "ConstantLR"]


class CosineAnnealingWithWarmupDecay(LRScheduler):
    def __init__(
        self, max_lr, min_lr, warmup_rate, decay_steps, total_steps=None, last_epoch=-1, **kwargs
    ):
        self.decay_steps = decay_steps
        self.warmup_step = warmup_rate * decay_steps
        self.max_lr = max_lr
        self.min_lr = min_lr
        super().__init__(max_lr, last_epoch)

    def get_lr(self):
        if self.warmup_step > 0 and self.last_epoch <= self.warmup_step:
            return float(self.max_lr) * self.last_epoch / self.warmup_step
        if self.last_epoch > self.decay_steps:
            return self.min_lr
        num_step = self.last_epoch - self.warmup_step
        ratio = float(num_step) / (self.decay_steps - self.warmup_step)
        coeff = 0.5 * (math.cos(math.pi * ratio) + 1.0)
        return self.min_lr + coeff * (self.max_lr - self.min_lr)


class ConstantLR(object):
    def __init__(self, learning_rate, **kwargs):
        self.learning_rate = learning_rate

    def __call__(self):
        return self.learning_rate
