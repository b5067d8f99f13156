"""Every private name of Paddle that this adapter touches, in one table.

A name that is missing is an error for the feature that needs it, at the moment it is needed; the
rest goes on. Private are, beside underscored names, the modules under ``paddle.base`` and what
``paddle._C_ops`` holds.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import paddle

from ampbridge.errors import UnsupportedError


class Private(NamedTuple):
    """A private name: what breaks without it, whether anything works without it, where it was seen."""

    breaks: str
    required: bool
    versions: str


PRIVATE: Mapping[str, Private] = {
    "paddle._C_ops": Private("simulated regions: every op is looked up there", True, "3.3.1"),
    "paddle._C_ops.assign": Private("simulated regions: float32 outputs of models", True, "3.3.1"),
    "paddle._C_ops.cast": Private("rounding to the low precision", True, "3.3.1"),
    "paddle._C_ops.full": Private("the GradScaler on a GPU", True, "3.3.1"),
    "paddle._C_ops.scale": Private("rounding to float16", True, "3.3.1"),
    "paddle._C_ops.scale_": Private("rounding to float16", True, "3.3.1"),
    "paddle._C_ops.abs": Private("rounding to float16", True, "3.3.1"),
    "paddle._C_ops.clip": Private("rounding to float16", True, "3.3.1"),
    "paddle._C_ops.add_": Private("rounding to float16", True, "3.3.1"),
    "paddle._C_ops.subtract_": Private("rounding to float16", True, "3.3.1"),
    "paddle._C_ops.copysign_": Private("rounding to float16", True, "3.3.1"),
    "paddle._C_ops.check_finite_and_unscale_": Private("the GradScaler", True, "3.3.1"),
    "paddle._C_ops.squared_l2_norm": Private("the GradScaler, clip_norm", True, "3.3.1"),
    "paddle.base.core.eager.Tensor": Private("simulated regions: + - * / @ **", True, "3.3.1"),
    "paddle.nn.functional.conv._conv_nd": Private(
        "simulated regions: the bias of convolution layers", False, "3.3.1"
    ),
    "paddle.base.framework._dygraph_tracer": Private(
        "regions on GPU: op lists that custom lists cannot express", True, "3.3.1"
    ),
    "paddle.base.core._set_amp_op_list": Private(
        "regions on GPU, in a traced program", True, "3.3.1"
    ),
    "paddle.base.core._get_amp_attrs": Private(
        "regions on GPU, in a traced program", True, "3.3.1"
    ),
    "paddle.base.core.AmpLevel": Private(
        "regions on GPU: O0 inside of another region", True, "3.3.1"
    ),
    "paddle.base.core.get_all_op_names": Private(
        "regions on GPU with lists='tensorflow': the ops that are in no list", True, "3.3.1"
    ),
    "paddle.base.framework.in_pir_mode": Private("compile=True", True, "3.3.1"),
    "paddle.jit.dy2static.program_translator.convert_to_static": Private(
        "compile=True: control flow in the loss", True, "3.3.1"
    ),
    "paddle.jit.dy2static.convert_call_func.convert_call": Private(
        "to_static: functions that are ops; compile=True: a loss that is a lambda", True, "3.3.1"
    ),
    "paddle.jit.dy2static.utils.Dygraph2StaticException": Private(
        "compile=True: losses that Paddle cannot translate", True, "3.3.1"
    ),
    "paddle.jit.dy2static.program_translator.StaticFunction": Private(
        "regions: what is compiled already", True, "3.3.1"
    ),
    "paddle.hapi.model.DynamicGraphAdapter": Private(
        "paddle.Model in mixed precision (prepare)", False, "3.3.1"
    ),
    "paddle.hapi.model._update_input_info": Private(
        "paddle.Model in mixed precision (prepare)", False, "3.3.1"
    ),
    "paddle.distributed.fleet.recompute.recompute.RecomputeFunction": Private(
        "recompute in a region or a step", True, "3.3.1"
    ),
    "paddle.distributed.fleet.recompute.recompute_hybrid._HPRecomputeFunction": Private(
        "recompute in a region or a step", True, "3.3.1"
    ),
    "paddle.distributed.fleet.recompute.recompute._recompute_without_reentrant": Private(
        "recompute in a region or a step", True, "3.3.1"
    ),
    "paddle.distributed.fleet.meta_parallel.MetaParallelBase": Private(
        "models in fleet's hybrid groups", False, "3.3.1"
    ),
    "paddle.distributed.fleet.meta_optimizers.dygraph_optimizer.DygraphShardingOptimizer": Private(
        "optimizers that fleet has wrapped", False, "3.3.1"
    ),
    "paddle.distributed.fleet.meta_optimizers.dygraph_optimizer.dygraph_sharding_optimizer"
    ".DygraphShardingOptimizerV2": Private("optimizers that fleet has wrapped", False, "3.3.1"),
    "paddle.distributed.sharding.group_sharded.GroupShardedStage2": Private(
        "training on several ranks", False, "3.3.1"
    ),
    "paddle.distributed.sharding.group_sharded.GroupShardedStage3": Private(
        "training on several ranks", False, "3.3.1"
    ),
    "paddle.distributed.sharding.group_sharded.GroupShardedOptimizerStage2": Private(
        "training on several ranks", False, "3.3.1"
    ),
    "paddle._C_ops.assign_out_": Private("simulated regions: gradients", True, "3.3.1"),
    "paddle._C_ops.view_shape": Private("observing gradients", False, "3.3.1"),
    "paddle.base.core.eager._is_run_in_backward": Private("observing", False, "3.3.1"),
    "paddle.jit.dy2static.program_translator.ProgramTranslator": Private(
        "regions, observing: what is compiled already", True, "3.3.1"
    ),
    "paddle.base.core.host_memory_stat_current_value": Private("peak memory", False, "3.3.1"),
    "paddle.base.core.host_memory_stat_peak_value": Private("peak memory", False, "3.3.1"),
    "paddle.base.core.host_memory_stat_reset_peak_value": Private("peak memory", False, "3.3.1"),
    # methods and attributes, looked up on the objects themselves
    "Tracer._set_amp_op_list": Private("regions on GPU", True, "3.3.1"),
    "Tracer._amp_level": Private("regions on GPU: O0 inside of another region", True, "3.3.1"),
    "AmpAttrs._amp_level": Private("regions on GPU, in a traced program", True, "3.3.1"),
    "Tensor._inplace_version": Private(
        "simulated regions: marks of changed tensors", True, "3.3.1"
    ),
    "Tensor._is_initialized": Private(
        "simulated regions: ops with unused outputs; O2 in float16", True, "3.3.1"
    ),
    "Tensor._use_gpudnn": Private("simulated regions: marks in adaptive pooling", False, "3.3.1"),
    "Tensor._share_buffer_to": Private("simulated regions: gradients", True, "3.3.1"),
    "Tensor._new_shared_tensor": Private("simulated regions: marks in recompute", False, "3.3.1"),
    "Tensor._get_tensor_from_selected_rows": Private(
        "gradients of sparse embeddings", False, "3.3.1"
    ),
    "Tensor._register_grad_hook": Private("gradients under parameter hooks", False, "3.3.1"),
    "Tensor._remove_grad_hook": Private("gradients under parameter hooks", False, "3.3.1"),
    "Layer._parameters": Private("observing recurrent cells", False, "3.3.1"),
    "ProgramTranslator.enable_to_static": Private(
        "regions, observing: what is compiled already", True, "3.3.1"
    ),
    "Layer._state_dict_hooks": Private("decorate(save_dtype=...)", False, "3.3.1"),
    "Layer._dtype": Private("O2 on GPU", True, "3.3.1"),
    "Layer._cast_to_low_precision": Private("O2 on GPU", True, "3.3.1"),
    "Layer._buffers": Private("O2 on GPU", True, "3.3.1"),
    "Layer._groups": Private("amp.load_weights: depthwise convolutions", True, "3.3.1"),
    "Layer._non_persistable_buffer_names_set": Private("step.save, step.load", True, "3.3.1"),
    "Optimizer._master_weights": Private("O2 on GPU", True, "3.3.1"),
    "Optimizer._accumulators": Private("step.save, step.load", True, "3.3.1"),
    "Optimizer._accumulators_holder": Private("step.save, step.load", True, "3.3.1"),
    "Optimizer._already_create_accumulator": Private("step.load", True, "3.3.1"),
    "Optimizer._create_optimization_pass": Private("O2 on GPU", True, "3.3.1"),
    "Optimizer._create_param_lr": Private("simulated O2: the rate of SGD", False, "3.3.1"),
    "Optimizer._create_accumulators": Private("step.load", True, "3.3.1"),
    "Optimizer._create_multi_tensor_dict": Private(
        "step.load of optimizers with use_multi_tensor=True", False, "3.3.1"
    ),
    "Optimizer._learning_rate": Private("step.save, step.load, schedulers", True, "3.3.1"),
    "Optimizer._name": Private("step.save, step.load of optimizers with a name", True, "3.3.1"),
    "Model._loss": Private("paddle.Model in mixed precision (prepare)", False, "3.3.1"),
    "Model._metrics": Private("paddle.Model in mixed precision (prepare)", False, "3.3.1"),
    "Model._optimizer": Private("paddle.Model in mixed precision (prepare)", False, "3.3.1"),
    "Model._scaler": Private("paddle.Model in mixed precision (prepare)", False, "3.3.1"),
    "DynamicGraphAdapter._amp_level": Private(
        "paddle.Model in mixed precision (prepare)", False, "3.3.1"
    ),
    "Optimizer._parameter_list": Private("scaler.step(optimizer)", True, "3.3.1"),
    "Optimizer._inner_opt": Private("optimizers that fleet has wrapped", False, "3.3.1"),
    "DataParallel._layers": Private("models that are trained on several ranks", False, "3.3.1"),
    "DygraphShardingOptimizer.tensor_fusion": Private(
        "optimizers that fleet has wrapped", False, "3.3.1"
    ),
    "DygraphShardingOptimizer.comm_overlap": Private(
        "optimizers that fleet has wrapped", False, "3.3.1"
    ),
    "Optimizer._param_groups": Private("scaler.step(optimizer)", True, "3.3.1"),
}


@cache
def private(name: str) -> Any:
    """The object that a dotted ``name`` of the table stands for.

    Raises:
        UnsupportedError: if this version of Paddle does not have it.
    """
    entry = PRIVATE[name]
    try:
        return _resolve(name)
    except (ImportError, AttributeError) as error:
        msg = (
            f"paddlepaddle {paddle.__version__} has no {name} (seen in {entry.versions}); "
            f"without it there is no: {entry.breaks}.\n"
            "Hint: pip install paddlepaddle==3.3.1"
        )
        raise UnsupportedError(msg) from error


def present(name: str) -> Any:
    """What stands under a dotted ``name``, public or of the table, now: a replacement, it may be."""
    if name in PRIVATE:
        private(name)  # the error of a name that is missing
    return _resolve(name)


def method(kind: str, obj: Any, name: str) -> Any:
    """``obj.name``, a method or attribute that the table lists under ``kind.name``."""
    try:
        return getattr(obj, name)
    except AttributeError as error:
        entry = PRIVATE[f"{kind}.{name}"]
        msg = (
            f"{type(obj).__name__} of paddlepaddle {paddle.__version__} has no {name} (seen in "
            f"{entry.versions}); without it there is no: {entry.breaks}.\n"
            "Hint: pip install paddlepaddle==3.3.1"
        )
        raise UnsupportedError(msg) from error


def _resolve(name: str) -> Any:
    # Modules are imported, not looked up: `paddle.tensor` as an attribute is not the module.
    module, _, attribute = name.rpartition(".")
    try:
        owner = importlib.import_module(module)
    except ImportError:
        owner = _resolve(module)
    return getattr(owner, attribute)
