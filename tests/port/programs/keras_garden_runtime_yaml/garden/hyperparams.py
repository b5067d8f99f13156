"""Experiments as nested dataclasses that dictionaries override."""

import dataclasses
from typing import Optional, Union

import yaml

_EXPERIMENTS = {}


def register_config_factory(name):
    def decorator(factory):
        _EXPERIMENTS[name] = factory
        return factory

    return decorator


def get_exp_config(name):
    return _EXPERIMENTS[name]()


def read_yaml(path):
    with open(path, encoding="utf-8") as file:
        return yaml.safe_load(file)


def nested_dict(text):
    """``a.b=1,c=x`` as ``{"a": {"b": 1}, "c": "x"}``."""
    result = {}
    for pair in text.split(","):
        key, value = pair.split("=", 1)
        *parents, last = key.split(".")
        target = result
        for parent in parents:
            target = target.setdefault(parent, {})
        target[last] = yaml.safe_load(value)
    return result


@dataclasses.dataclass
class Config:
    def override(self, values):
        for key, value in values.items():
            if not hasattr(self, key):
                raise KeyError(f"{type(self).__name__} has no {key!r}")
            current = getattr(self, key)
            if isinstance(current, Config) and isinstance(value, dict):
                current.override(value)
            else:
                setattr(self, key, value)


@dataclasses.dataclass
class RuntimeConfig(Config):
    distribution_strategy: str = "mirrored"
    num_gpus: int = 0
    enable_xla: bool = False
    # None, "float16" or "bfloat16"
    mixed_precision_dtype: Optional[str] = None
    # None or "dynamic", or a number for a scale that stays
    loss_scale: Optional[Union[str, float]] = None


@dataclasses.dataclass
class DataConfig(Config):
    global_batch_size: int = 128
    image_size: int = 32
    seed: int = 0


@dataclasses.dataclass
class TaskConfig(Config):
    num_classes: int = 10
    width: int = 32
    gradient_clip_norm: float = 0.0
    train_data: DataConfig = dataclasses.field(default_factory=DataConfig)


@dataclasses.dataclass
class OptimizerConfig(Config):
    type: str = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.9


@dataclasses.dataclass
class TrainerConfig(Config):
    train_steps: int = 10000
    summary_interval: int = 100
    optimizer_config: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)


@dataclasses.dataclass
class ExperimentConfig(Config):
    runtime: RuntimeConfig = dataclasses.field(default_factory=RuntimeConfig)
    task: TaskConfig = dataclasses.field(default_factory=TaskConfig)
    trainer: TrainerConfig = dataclasses.field(default_factory=TrainerConfig)


@register_config_factory("resnet_small")
def resnet_small():
    return ExperimentConfig(task=TaskConfig(width=16), trainer=TrainerConfig(train_steps=2000))


@register_config_factory("resnet_small_bfloat16")
def resnet_small_bfloat16():
    return ExperimentConfig(runtime=RuntimeConfig(mixed_precision_dtype="bfloat16"))
