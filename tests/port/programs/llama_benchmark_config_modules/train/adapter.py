"""What a vendor may replace: how the model is converted, and how a step is done."""

import contextlib

import paddle
import paddle.amp.auto_cast as autocast
from paddle import nn
from paddle.distributed import fleet

from .model import LlamaRMSNorm


def convert_model(config, model):
    return model


def create_optimizer(config, model):
    decayed = [
        p.name
        for name, p in model.named_parameters()
        if not any(part in name for part in ["bias", "norm"])
    ]
    return paddle.optimizer.AdamW(
        learning_rate=config.learning_rate,
        parameters=model.parameters(),
        weight_decay=config.weight_decay,
        apply_decay_param_fun=lambda name: name in decayed,
        grad_clip=nn.ClipGradByGlobalNorm(config.max_grad_norm),
    )


def model_to_fp16(config, model, optimizer):
    return paddle.amp.decorate(
        models=model,
        optimizers=optimizer,
        level=config.fp16_opt_level,
        master_grad=config.amp_master_grad,
        excluded_layers=[LlamaRMSNorm],
    )


def create_grad_scaler(config):
    scaler = paddle.amp.GradScaler(init_loss_scaling=config.scale_loss)
    if config.use_hybrid_parallel:
        scaler = fleet.distributed_scaler(scaler)
    return scaler


def autocast_smart_context_manager(config):
    if not (config.fp16 or config.bf16):
        return contextlib.nullcontext()
    custom_black_list = ["reduce_sum", "c_softmax_with_cross_entropy"]
    custom_white_list = []
    if config.fp16_opt_level == "O2":
        custom_white_list.extend(["lookup_table", "lookup_table_v2"])
    if config.amp_custom_white_list is not None:
        custom_white_list.extend(config.amp_custom_white_list)
    if config.amp_custom_black_list is not None:
        custom_black_list.extend(config.amp_custom_black_list)
    return autocast(
        True,
        custom_black_list=set(custom_black_list),
        custom_white_list=set(custom_white_list),
        level=config.fp16_opt_level,
        dtype="float16" if config.fp16 else "bfloat16",
    )


def backward(config, step, loss, optimizer, scaler):
    """True if it was the last batch of a step."""
    loss = loss / config.gradient_accumulation_steps
    update = step % config.gradient_accumulation_steps == 0
    if config.fp16:
        scaler.scale(loss).backward()
        if update:
            scaler.step(optimizer)
            scaler.update()
    else:
        loss.backward()
        if update:
            optimizer.step()
    if update:
        optimizer.clear_grad()
    return update
