"""Structured defaults; the yaml files of conf/ change them."""

from dataclasses import dataclass, field
from typing import Any, Dict

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING


@dataclass
class NetworkConf:
    width: int = 512
    depth: int = 6


@dataclass
class TrainingConf:
    max_steps: int = 10000
    grad_agg_freq: int = 1
    grad_clip_max_norm: float = 0.0
    amp: bool = False
    amp_dtype: str = "float16"
    print_stats_freq: int = 100
    save_network_freq: int = 1000


@dataclass
class PhysicsDefaultConf:
    network_dir: str = "outputs"
    network: NetworkConf = field(default_factory=NetworkConf)
    training: TrainingConf = field(default_factory=TrainingConf)
    optimizer: Any = MISSING
    batch_size: Dict[str, int] = field(default_factory=dict)


@dataclass
class AdamConf:
    name: str = "Adam"
    lr: float = 1e-3
    compute_gradients: str = "adam_compute_gradients"
    apply_gradients: str = "adam_apply_gradients"


@dataclass
class LbfgsConf:
    name: str = "LBFGS"
    lr: float = 1.0
    compute_gradients: str = "lbfgs_compute_gradients"
    apply_gradients: str = "lbfgs_apply_gradients"


def register_configs() -> None:
    store = ConfigStore.instance()
    store.store(name="physics_default", node=PhysicsDefaultConf)
    store.store(group="optimizer", name="adam", node=AdamConf)
    store.store(group="optimizer", name="lbfgs", node=LbfgsConf)
