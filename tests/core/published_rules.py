"""The dynamic loss scales of other libraries, as their sources word them, in a few lines each.

Each is a class with ``scale`` and ``update(overflow)``, begun with the library's own defaults. They
stand beside the presets as a second account of the same sources, without a word of ours.
"""

import numpy as np


class Torch:
    """torch 2.13, aten/src/ATen/native/cuda/AmpKernels.cu, amp_update_scale."""

    def __init__(self, scale=2.0**16, growth=2.0, backoff=0.5, interval=2000):
        self.scale, self.tracker = np.float32(scale), 0
        self.growth, self.backoff, self.interval = np.float32(growth), np.float32(backoff), interval

    def update(self, overflow):
        if overflow:
            self.scale *= self.backoff
            self.tracker = 0
            return
        self.tracker += 1
        if self.tracker == self.interval:
            grown = self.scale * self.growth
            if np.isfinite(grown):
                self.scale = grown
            self.tracker = 0


class Paddle:
    """paddlepaddle 3.3, AmpScaler._update of python/paddle/amp/grad_scaler.py."""

    def __init__(self, scale=2.0**16, incr=2.0, decr=0.5, incr_every=2000, decr_every=1):
        self.scale, self.incr_count, self.decr_count = np.float32(scale), 0, 0
        self.incr, self.decr = np.float32(incr), np.float32(decr)
        self.incr_every, self.decr_every = incr_every, decr_every

    def update(self, overflow):
        if overflow:
            self.incr_count = 0
            self.decr_count += 1
            if self.decr_count == self.decr_every:
                self.scale *= self.decr
                self.decr_count = 0
        else:
            self.decr_count = 0
            self.incr_count += 1
            if self.incr_count == self.incr_every:
                self.scale *= self.incr
                self.incr_count = 0


class PaddleFleet(Paddle):
    """The kernel update_loss_scaling of paddlepaddle 3.3 with DistributedStrategy's amp_configs."""

    def __init__(self):
        super().__init__(32768.0, 2.0, 0.8, 1000, 2)

    def update(self, overflow):
        before = self.scale
        super().update(overflow)
        if not np.isfinite(self.scale):
            self.scale = before
        if overflow and self.scale < 1:
            self.scale = np.float32(1)


class Keras(Torch):
    """Keras 3.15, LossScaleOptimizer: x2 in the step that completes the period, /2 on overflow."""

    def __init__(self):
        super().__init__(2.0**15)


class Apex:
    """apex/amp/scaler.py, LossScaler.update_scale, as it stood before its removal."""

    def __init__(self):
        self.scale, self.unskipped = 2.0**16, 0

    def update(self, overflow):
        if overflow:
            self.scale /= 2.0
            self.unskipped = 0
        else:
            self.unskipped += 1
        if self.unskipped == 2000:
            self.scale = min(2.0**24, self.scale * 2.0)
            self.unskipped = 0


class DeepSpeed:
    """deepspeed/runtime/fp16/loss_scaler.py, DynamicLossScaler.update_scale, August 2026."""

    def __init__(self, scale=2.0**16, window=1000, shift=2, minimum=1.0):
        self.scale, self.window, self.shift, self.minimum = scale, window, shift, minimum
        self.iteration, self.last_overflow, self.hysteresis = 0, -1, shift

    def update(self, overflow):
        if overflow:
            if self.shift == 1 or self.hysteresis == 1:
                if self.scale == self.minimum:
                    raise OverflowError("Current loss scale already at minimum")
                self.scale = max(self.scale / 2.0, self.minimum)
            else:
                self.hysteresis -= 1
            self.last_overflow = self.iteration
        else:
            stable = (self.iteration - self.last_overflow) - 1
            if stable > 0 and stable % self.window == 0:
                self.hysteresis = self.shift
                self.scale *= 2.0
        self.iteration += 1


class Megatron:
    """megatron/core/optimizer/grad_scaler.py, DynamicGradScaler.update."""

    def __init__(self):
        self.scale, self.growth_tracker, self.hysteresis_tracker = 2.0**32, 0, 2

    def update(self, overflow):
        if overflow:
            self.growth_tracker = 0
            self.hysteresis_tracker -= 1
            if self.hysteresis_tracker <= 0:
                self.scale = max(self.scale * 0.5, 1.0)
        else:
            self.growth_tracker += 1
            if self.growth_tracker == 1000:
                self.growth_tracker, self.hysteresis_tracker = 0, 2
                self.scale *= 2.0


class Flax:
    """flax/training/dynamic_scale.py, DynamicScale.value_and_grad."""

    def __init__(self):
        self.scale, self.finite_steps = np.float32(65536.0), 0

    def update(self, overflow):
        limits = np.finfo(np.float32)
        grow = self.finite_steps == 2000
        if overflow:
            self.scale = max(self.scale * np.float32(0.5), limits.tiny)
        elif grow:
            self.scale = min(self.scale * np.float32(2.0), limits.max)
        self.finite_steps = 0 if grow or overflow else self.finite_steps + 1


class Jmp:
    """jmp/_src/loss_scale.py, DynamicLossScale.adjust."""

    def __init__(self):
        self.scale, self.counter = np.float32(2.0**15), 0

    def update(self, overflow):
        if overflow:
            self.scale = max(np.float32(1.0), self.scale / np.float32(2))
        elif self.counter == 2000 - 1 and np.isfinite(self.scale * np.float32(2)):
            self.scale = self.scale * np.float32(2)
        self.counter = 0 if overflow else (self.counter + 1) % 2000


class MindSpore:
    """mindspore/train/loss_scale_manager.py, DynamicLossScaleManager.update_loss_scale."""

    def __init__(self):
        self.scale, self.iteration, self.last_overflow, self.bad_steps = 2.0**24, 1, 0, 0

    def update(self, overflow):
        if overflow:
            self.scale = max(self.scale * 0.5, 1)
            self.last_overflow = self.iteration
            self.bad_steps += 1
        else:
            if (self.iteration - self.last_overflow) % 2000 == 0:
                self.scale *= 2
            self.bad_steps = 0
        if self.bad_steps > 1000:
            raise RuntimeError("Continuous overflow")
        self.iteration += 1


RULES = {
    "torch": Torch,
    "paddle": Paddle,
    "paddle_fleet": PaddleFleet,
    "keras": Keras,
    "apex": Apex,
    "deepspeed": DeepSpeed,
    "megatron": Megatron,
    "flax": Flax,
    "jmp": Jmp,
    "mindspore": MindSpore,
}
