from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.trainer import Trainer

from . import model_registry


def llama3_debugmodel() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("debugmodel"),
        optimizer=OptimizersContainer.Config(
            implementation="fused_opt_states_bf16",
            param_groups=[
                ParamGroupConfig(
                    pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 8e-4}
                )
            ],
        ),
        training=TrainingConfig(
            local_batch_size=8,
            global_batch_size=64,
            mixed_precision_param="bfloat16",
            loss_dtype="bfloat16",
        ),
        parallelism=ParallelismConfig(data_parallel_shard_degree=-1),
    )
