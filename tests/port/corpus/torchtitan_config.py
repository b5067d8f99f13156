from torchtitan.components.optimizer import default_adamw
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.trainer import Trainer

from . import model_registry


def llama3_debugmodel() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("debugmodel"),
        optimizer=default_adamw(lr=8e-4),
        training=TrainingConfig(dtype="bfloat16", global_batch_size=64, loss_dtype="bfloat16"),
        parallelism=ParallelismConfig(data_parallel_shard_degree=-1),
    )


def llama3_debugmodel_low_states() -> Trainer.Config:
    config = llama3_debugmodel()
    config.training.dtype = "float32"
    config.training.max_norm = 0.5
    config.optimizer.implementation = "fused_opt_states_bf16"
    return config
