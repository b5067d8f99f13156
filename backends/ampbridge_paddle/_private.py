"""Every private name of Paddle that this adapter touches, in one table.

A name that is missing is an error for the feature that needs it, at the moment it is needed; the
rest goes on. Private are, beside underscored names, the modules under ``paddle.base`` and what
``paddle._C_ops`` holds.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any

import paddle

from ampbridge.errors import UnsupportedError

SEEN_IN = "3.3.1"
"""The version of paddlepaddle in which each of these names was checked."""

# Name -> what there is not without it.
PRIVATE: Mapping[str, str] = {
    "paddle._C_ops": "simulated regions: every op is looked up there",
    "paddle._C_ops.assign": "simulated regions: float32 outputs of models",
    "paddle._C_ops.cast": "rounding to the low precision",
    "paddle._C_ops.full": "the GradScaler on a GPU",
    "paddle._C_ops.scale": "rounding to float16",
    "paddle._C_ops.scale_": "rounding to float16",
    "paddle._C_ops.abs": "rounding to float16",
    "paddle._C_ops.clip": "rounding to float16",
    "paddle._C_ops.add_": "rounding to float16",
    "paddle._C_ops.subtract_": "rounding to float16",
    "paddle._C_ops.copysign_": "rounding to float16",
    "paddle._C_ops.check_finite_and_unscale_": "the GradScaler",
    "paddle._C_ops.squared_l2_norm": "the GradScaler, clip_norm",
    "paddle.nn.functional.conv._conv_nd": "simulated regions: the bias of convolution layers",
    "paddle.base.framework._dygraph_tracer": (
        "regions on GPU: op lists that custom lists cannot express"
    ),
    "paddle.base.core._set_amp_op_list": "regions on GPU, in a traced program",
    "paddle.base.core._get_amp_attrs": "regions on GPU, in a traced program",
    "paddle.base.core.AmpLevel": "regions on GPU: O0 inside of another region",
    "paddle.base.core.get_all_op_names": (
        "regions on GPU with lists='tensorflow': the ops that are in no list"
    ),
    "paddle.base.core.get_cublas_switch": "Policy(float32=...)",
    "paddle.base.core.set_cublas_switch": "Policy(float32=...)",
    "paddle.base.core.get_cudnn_switch": "Policy(float32=...)",
    "paddle.base.core.set_cudnn_switch": "Policy(float32=...)",
    "paddle.base.core.VarDesc": "steps with dense gradients",
    "paddle.base.framework.in_pir_mode": "compile=True",
    "paddle.jit.dy2static.program_translator.convert_to_static": (
        "compile=True: control flow in the loss"
    ),
    "paddle.jit.dy2static.convert_call_func.convert_call": (
        "to_static: functions that are ops; compile=True: a loss that is a lambda"
    ),
    "paddle.jit.dy2static.utils.Dygraph2StaticException": (
        "compile=True: losses that Paddle cannot translate"
    ),
    "paddle.jit.dy2static.program_translator.StaticFunction": "regions: what is compiled already",
    "paddle.hapi.model.DynamicGraphAdapter": "paddle.Model in mixed precision (prepare)",
    "paddle.hapi.model._update_input_info": "paddle.Model in mixed precision (prepare)",
    "paddle.distributed.fleet.recompute.recompute.RecomputeFunction": (
        "recompute in a region or a step"
    ),
    "paddle.distributed.fleet.recompute.recompute_hybrid._HPRecomputeFunction": (
        "recompute in a region or a step"
    ),
    "paddle.distributed.fleet.recompute.recompute._recompute_without_reentrant": (
        "recompute in a region or a step"
    ),
    "paddle.distributed.fleet.meta_parallel.MetaParallelBase": "models in fleet's hybrid groups",
    "paddle.distributed.fleet.meta_optimizers.dygraph_optimizer.DygraphShardingOptimizer": (
        "optimizers that fleet has wrapped"
    ),
    "paddle.distributed.fleet.meta_optimizers.dygraph_optimizer.dygraph_sharding_optimizer"
    ".DygraphShardingOptimizerV2": "optimizers that fleet has wrapped",
    "paddle.distributed.sharding.group_sharded.GroupShardedStage2": "training on several ranks",
    "paddle.distributed.sharding.group_sharded.GroupShardedStage3": "training on several ranks",
    "paddle.distributed.sharding.group_sharded.GroupShardedOptimizerStage2": (
        "training on several ranks"
    ),
    "paddle._C_ops.assign_out_": "simulated regions: gradients",
    "paddle._C_ops.view_shape": "observing gradients",
    "paddle.base.core.eager._is_run_in_backward": "observing",
    "paddle.jit.dy2static.program_translator.ProgramTranslator": (
        "regions, observing: what is compiled already"
    ),
    "paddle.base.core.host_memory_stat_current_value": "peak memory",
    "paddle.base.core.host_memory_stat_peak_value": "peak memory",
    "paddle.base.core.host_memory_stat_reset_peak_value": "peak memory",
    "Tracer._set_amp_op_list": "regions on GPU",
    "Tracer._amp_level": "regions on GPU: O0 inside of another region",
    "AmpAttrs._amp_level": "regions on GPU, in a traced program",
    "Tensor._inplace_version": "simulated regions: marks of changed tensors",
    "Tensor._is_initialized": "simulated regions: ops with unused outputs; O2 in float16",
    "Tensor._use_gpudnn": "simulated regions: marks in adaptive pooling",
    "Tensor._share_buffer_to": "simulated regions: gradients",
    "Tensor.get_tensor": "O2 on GPU with masters 'kahan' and 'stochastic'",
    "DenseTensor._share_data_with": "O2 on GPU with masters 'kahan' and 'stochastic'",
    "Tensor._new_shared_tensor": "simulated regions: marks in recompute",
    "Tensor._get_tensor_from_selected_rows": "gradients of sparse embeddings",
    "Tensor._set_grad_type": "steps with dense gradients",
    "Tensor._register_grad_hook": "gradients under parameter hooks",
    "Tensor._remove_grad_hook": "gradients under parameter hooks",
    "Layer._parameters": "observing recurrent cells",
    "ProgramTranslator.enable_to_static": "regions, observing: what is compiled already",
    "Layer._state_dict_hooks": "decorate(save_dtype=...)",
    "Layer._dtype": "O2 on GPU",
    "Layer._cast_to_low_precision": "O2 on GPU",
    "Layer._buffers": "O2 on GPU",
    "Layer._groups": "amp.load_weights: depthwise convolutions",
    "Layer._non_persistable_buffer_names_set": "step.save, step.load",
    "Optimizer._master_weights": "O2 on GPU",
    "Optimizer._accumulators": "step.save, step.load",
    "Optimizer._accumulators_holder": "step.save, step.load; O2",
    "Optimizer._already_create_accumulator": "step.load",
    "Optimizer._create_optimization_pass": "O2",
    "Optimizer._use_multi_tensor": "O2 with masters 'kahan' and 'stochastic'",
    "Optimizer._create_regularization_of_grad": "O2 on GPU with masters 'kahan'",
    "Optimizer._create_param_lr": "simulated O2: the rate of SGD",
    "Optimizer._create_accumulators": "step.load",
    "Optimizer._create_multi_tensor_dict": "step.load of optimizers with use_multi_tensor=True",
    "Optimizer._learning_rate": "step.save, step.load, schedulers",
    "Optimizer._name": "step.save, step.load of optimizers with a name",
    "Model._loss": "paddle.Model in mixed precision (prepare)",
    "Model._metrics": "paddle.Model in mixed precision (prepare)",
    "Model._optimizer": "paddle.Model in mixed precision (prepare)",
    "Model._scaler": "paddle.Model in mixed precision (prepare)",
    "DynamicGraphAdapter._amp_level": "paddle.Model in mixed precision (prepare)",
    "Optimizer._parameter_list": "scaler.step(optimizer)",
    "Optimizer._inner_opt": "optimizers that fleet has wrapped",
    "DataParallel._layers": "models that are trained on several ranks",
    "DygraphShardingOptimizer.tensor_fusion": "optimizers that fleet has wrapped",
    "DygraphShardingOptimizer.comm_overlap": "optimizers that fleet has wrapped",
    "Optimizer._param_groups": "scaler.step(optimizer)",
}


@cache
def private(name: str) -> Any:
    """The object that a dotted ``name`` of the table stands for.

    Raises:
        UnsupportedError: if this version of Paddle does not have it.
    """
    PRIVATE[name]  # each that is used is listed
    try:
        return _resolve(name)
    except (ImportError, AttributeError) as error:
        raise _missing("paddlepaddle", name, name) from error


def present(name: str) -> Any:
    """What a dotted ``name``, public or of the table, stands for now; a region may have replaced it."""
    if name in PRIVATE:
        private(name)  # the error of a name that is missing
    return _resolve(name)


def method(kind: str, obj: Any, name: str) -> Any:
    """``obj.name``, a method or attribute that the table lists under ``kind.name``."""
    try:
        return getattr(obj, name)
    except AttributeError as error:
        owner = f"{type(obj).__name__} of paddlepaddle"
        raise _missing(owner, name, f"{kind}.{name}") from error


def _missing(owner: str, name: str, listed_as: str) -> UnsupportedError:
    return UnsupportedError(
        f"{owner} {paddle.__version__} has no {name} (seen in {SEEN_IN}); without it there is no: "
        f"{PRIVATE[listed_as]}.\n"
        f"Hint: pip install paddlepaddle=={SEEN_IN}"
    )


def _resolve(name: str) -> Any:
    # Modules are imported, not looked up: `paddle.tensor` as an attribute is not the module.
    module, _, attribute = name.rpartition(".")
    try:
        owner = importlib.import_module(module)
    except ImportError:
        owner = _resolve(module)
    return getattr(owner, attribute)
