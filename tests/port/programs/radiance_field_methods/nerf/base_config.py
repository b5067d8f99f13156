"""Configurations that make what they describe."""

from dataclasses import dataclass, field
from typing import Any, Optional, Type

import torch


@dataclass
class InstantiateConfig:
    """Config class for instantiating the class specified in the _target attribute."""

    _target: Type

    def setup(self, **kwargs) -> Any:
        """Returns the instantiated object using the config."""
        return self._target(self, **kwargs)


@dataclass
class MachineConfig:
    """Configuration of machine setup"""

    seed: int = 42
    """random seed initialization"""
    num_devices: int = 1
    """total number of devices (e.g., gpus) available for train/eval"""
    device_type: str = "cuda"
    """device type to use for training"""


@dataclass
class OptimizerConfig:
    """Basic optimizer config"""

    _target: Type = torch.optim.Adam
    lr: float = 0.0005
    eps: float = 1e-08
    max_norm: Optional[float] = None
    """The max norm to use for gradient clipping."""

    def setup(self, params) -> torch.optim.Optimizer:
        kwargs = vars(self).copy()
        kwargs.pop("_target")
        kwargs.pop("max_norm")
        return self._target(params, **kwargs)


@dataclass
class AdamOptimizerConfig(OptimizerConfig):
    _target: Type = torch.optim.Adam
    weight_decay: float = 0


@dataclass
class ExponentialDecayConfig:
    lr_final: float = 1e-4
    max_steps: int = 200000

    def setup(self, optimizer, lr_init):
        gamma = (self.lr_final / lr_init) ** (1.0 / self.max_steps)
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma)


@dataclass
class ExperimentConfig(InstantiateConfig):
    """What every experiment has."""

    _target: Type = None
    method_name: Optional[str] = None
    machine: MachineConfig = field(default_factory=MachineConfig)
    pipeline: Any = None
    optimizers: dict = field(default_factory=dict)
