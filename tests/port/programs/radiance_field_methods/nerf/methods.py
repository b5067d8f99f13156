"""All methods, by name."""

from typing import Dict

from nerf.base_config import AdamOptimizerConfig, ExponentialDecayConfig, MachineConfig
from nerf.pipeline import PipelineConfig
from nerf.trainer import TrainerConfig

method_configs: Dict[str, TrainerConfig] = {}

method_configs["field-facto"] = TrainerConfig(
    method_name="field-facto",
    steps_per_save=2000,
    max_num_iterations=30000,
    mixed_precision=True,
    machine=MachineConfig(seed=42),
    pipeline=PipelineConfig(num_rays_per_batch=4096),
    optimizers={
        "proposal_networks": {
            "optimizer": AdamOptimizerConfig(lr=1e-2, eps=1e-15),
            "scheduler": ExponentialDecayConfig(lr_final=0.0001, max_steps=200000),
        },
        "fields": {
            "optimizer": AdamOptimizerConfig(lr=1e-2, eps=1e-15),
            "scheduler": ExponentialDecayConfig(lr_final=0.0001, max_steps=200000),
        },
    },
)

method_configs["field-big"] = TrainerConfig(
    method_name="field-big",
    steps_per_save=2000,
    max_num_iterations=100000,
    mixed_precision=True,
    pipeline=PipelineConfig(num_rays_per_batch=8192, num_samples_per_ray=128, hidden_dim=128),
    optimizers={
        "proposal_networks": {"optimizer": AdamOptimizerConfig(lr=1e-2, eps=1e-15), "scheduler": None},
        "fields": {
            "optimizer": AdamOptimizerConfig(lr=1e-2, eps=1e-15),
            "scheduler": ExponentialDecayConfig(lr_final=1e-4, max_steps=50000),
        },
    },
)

method_configs["vanilla"] = TrainerConfig(
    method_name="vanilla",
    pipeline=PipelineConfig(num_rays_per_batch=1024, num_samples_per_ray=192, hidden_dim=256),
    optimizers={
        "proposal_networks": {"optimizer": AdamOptimizerConfig(lr=5e-4, eps=1e-08), "scheduler": None},
        "fields": {"optimizer": AdamOptimizerConfig(lr=5e-4, eps=1e-08), "scheduler": None},
    },
)
