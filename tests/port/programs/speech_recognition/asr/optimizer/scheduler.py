import math

from paddle.optimizer.lr import LRScheduler


class WarmupLR(LRScheduler):
    def __init__(self, warmup_steps=25000, learning_rate=1.0, min_lr=1e-5, last_epoch=-1):
        self.warmup_steps, self.min_lr = warmup_steps, min_lr
        super().__init__(learning_rate, last_epoch)

    def get_lr(self):
        step = self.last_epoch + 1
        lr = self.base_lr * self.warmup_steps**0.5 * min(step**-0.5, step * self.warmup_steps**-1.5)
        return max(lr, self.min_lr) if step > self.warmup_steps else lr


class NoamHoldAnnealing(LRScheduler):
    def __init__(self, learning_rate=1.0, warmup_steps=1000, hold_steps=10000, decay_rate=0.5,
                 min_lr=1e-5, last_epoch=-1):
        self.warmup_steps, self.hold_steps = warmup_steps, hold_steps
        self.decay_rate, self.min_lr = decay_rate, min_lr
        super().__init__(learning_rate, last_epoch)

    def get_lr(self):
        step = self.last_epoch + 1
        if step < self.warmup_steps:
            return self.base_lr * step / self.warmup_steps
        if step < self.warmup_steps + self.hold_steps:
            return self.base_lr
        decay = (self.warmup_steps / max(step - self.hold_steps, 1)) ** self.decay_rate
        return max(self.base_lr * decay, self.min_lr)


class CosineWithWarmup(LRScheduler):
    def __init__(self, learning_rate=1.0, warmup_steps=1000, max_steps=100000, min_lr=1e-5,
                 last_epoch=-1):
        self.warmup_steps, self.max_steps, self.min_lr = warmup_steps, max_steps, min_lr
        super().__init__(learning_rate, last_epoch)

    def get_lr(self):
        step = self.last_epoch + 1
        if step < self.warmup_steps:
            return self.base_lr * step / self.warmup_steps
        done = min((step - self.warmup_steps) / (self.max_steps - self.warmup_steps), 1.0)
        return self.min_lr + (self.base_lr - self.min_lr) * 0.5 * (1 + math.cos(math.pi * done))
