"""The trainer, and what configures it."""

import functools
from collections import defaultdict
from dataclasses import dataclass, field
from typing import DefaultDict, Dict, Type

import torch
from torch.amp.grad_scaler import GradScaler

from nerf.base_config import ExperimentConfig
from nerf.optimizers import Optimizers


@dataclass
class TrainerConfig(ExperimentConfig):
    """Configuration for training regimen"""

    _target: Type = field(default_factory=lambda: Trainer)
    """target class to instantiate"""
    steps_per_save: int = 1000
    """Number of steps between saves."""
    steps_per_log: int = 100
    max_num_iterations: int = 1000000
    """Maximum number of iterations to run."""
    mixed_precision: bool = False
    """Whether or not to use mixed precision for training."""
    use_grad_scaler: bool = False
    """Use gradient scaler even if the automatic mixed precision is disabled."""
    gradient_accumulation_steps: Dict[str, int] = field(default_factory=lambda: {})
    """Number of steps to accumulate gradients over. Contains a mapping of {param_group:num}"""


class Trainer:
    def __init__(self, config: TrainerConfig, local_rank: int = 0, world_size: int = 1) -> None:
        self.config = config
        self.local_rank = local_rank
        self.world_size = world_size
        self.device = config.machine.device_type
        if self.device == "cuda":
            self.device += f":{local_rank}"
        self.mixed_precision: bool = self.config.mixed_precision
        self.use_grad_scaler: bool = self.mixed_precision or self.config.use_grad_scaler
        self.gradient_accumulation_steps: DefaultDict = defaultdict(lambda: 1)
        self.gradient_accumulation_steps.update(self.config.gradient_accumulation_steps)

        if self.device == "cpu":
            self.mixed_precision = False
            print("Mixed precision is disabled for CPU training.")
        # optimizers
        self.grad_scaler = GradScaler(enabled=self.use_grad_scaler)

    def setup(self) -> None:
        self.pipeline = self.config.pipeline.setup(device=self.device)
        self.optimizers = Optimizers(self.config.optimizers.copy(), self.pipeline.get_param_groups())

    def train(self) -> None:
        self.pipeline.train()
        for step in range(self.config.max_num_iterations):
            loss, loss_dict = self.train_iteration(step)
            if step % self.config.steps_per_log == 0:
                print(step, {name: float(value) for name, value in loss_dict.items()})
            if step % self.config.steps_per_save == 0:
                torch.save({"step": step, "pipeline": self.pipeline.state_dict(),
                            "scalers": self.grad_scaler.state_dict()}, f"step-{step:09d}.ckpt")

    def train_iteration(self, step: int):
        """Run one iteration with a batch of inputs. Returns dictionary of model losses."""
        needs_zero = [
            group for group in self.optimizers.parameters.keys() if step % self.gradient_accumulation_steps[group] == 0
        ]
        self.optimizers.zero_grad_some(needs_zero)
        cpu_or_cuda_str: str = self.device.split(":")[0]
        cpu_or_cuda_str = "cpu" if cpu_or_cuda_str == "mps" else cpu_or_cuda_str

        with torch.autocast(device_type=cpu_or_cuda_str, enabled=self.mixed_precision):
            loss_dict = self.pipeline.get_train_loss_dict(step=step)
            loss = functools.reduce(torch.add, loss_dict.values())
        self.grad_scaler.scale(loss).backward()
        needs_step = [
            group
            for group in self.optimizers.parameters.keys()
            if step % self.gradient_accumulation_steps[group] == self.gradient_accumulation_steps[group] - 1
        ]
        self.optimizers.optimizer_scaler_step_some(self.grad_scaler, needs_step)

        scale = self.grad_scaler.get_scale()
        self.grad_scaler.update()
        # If the gradient scaler is decreased, no optimization step is performed so we should not step the scheduler.
        if scale <= self.grad_scaler.get_scale():
            self.optimizers.scheduler_step_all(step)
        return loss, loss_dict
