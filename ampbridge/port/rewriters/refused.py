"""AMP calls that no single call of ampbridge's takes the place of, and what to do instead."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ampbridge.port.dialect import Call
from ampbridge.port.rewriters.expressions import NoReplacement, Replacement

_TRAIN_STEP = (
    "write the recipe with --to toml, and the loop with amp.train_step(..., recipe=recipe)"
)
_KERAS = (
    "write the recipe with --to toml; amp.decorate(model, optimizer, recipe.policy) goes with fit, "
    "amp.train_step(..., recipe=recipe) with a loop of your own"
)

# Qualified name -> what to do.
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "apex.amp.initialize",
            "apex.amp.scale_loss",
            "apex.amp.register_float_function",
            "apex.amp.register_half_function",
            "apex.amp.register_promote_function",
            "deepspeed.initialize",
            "accelerate.Accelerator",
            "transformers.TrainingArguments",
            "lightning.fabric.Fabric",
            "lightning.pytorch.Trainer",
            "lightning.pytorch.plugins.MixedPrecision",
            "paddle.static.amp.decorate",
            "paddle.fluid.contrib.mixed_precision.decorate",
            "paddle.static.amp.bf16.decorate_bf16",
            "paddle.distributed.fleet.DistributedStrategy.amp",
        ),
        _TRAIN_STEP,
    ),
    **dict.fromkeys(
        (
            "keras.config.set_dtype_policy",
            "keras.config.set_floatx",
            "keras.mixed_precision.experimental.set_policy",
            "keras.optimizers.LossScaleOptimizer",
            "keras.mixed_precision.experimental.LossScaleOptimizer",
            "tensorflow.config.optimizer.set_experimental_options",
            "tensorflow.train.experimental.enable_mixed_precision_graph_rewrite",
        ),
        _KERAS,
    ),
    **dict.fromkeys(
        (
            "torch.set_autocast_enabled",
            "torch.set_autocast_dtype",
            "torch.set_autocast_gpu_dtype",
            "torch.set_autocast_cpu_dtype",
        ),
        "with ampbridge.autocast('O1'): around what is to run so",
    ),
    **dict.fromkeys(
        (
            "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler",
            "torch.distributed.fsdp.MixedPrecision",
        ),
        "fully_shard (FSDP2), with which ampbridge.GradScaler works",
    ),
}


def refuse(hint: str, call: Call) -> None:
    """Leave the call, and say what to do."""
    first_line = call.place.text.splitlines()[0]
    raise NoReplacement(f"{first_line}: no single call of ampbridge's takes its place.", hint)


REPLACEMENTS: Mapping[str, Replacement] = {
    name: partial(refuse, hint) for name, hint in REFUSED.items()
}
