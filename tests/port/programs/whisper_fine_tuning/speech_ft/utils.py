"""Configuration, numbers of steps, optimizer and scheduler."""

import math

import torch
import yaml


def read_config(yaml_file_path):
    with open(yaml_file_path, "r") as file:
        return yaml.safe_load(file)


def calculate_training_steps(config, batches_per_epoch):
    accum_grad_steps = config["training"]["accum_grad_steps"]
    return math.ceil(batches_per_epoch * config["training"]["epochs"] / accum_grad_steps)


def resolve_local_accum_grad_steps(accum_grad_steps, world_size=1):
    """The window of accumulation is that of all ranks together."""
    if accum_grad_steps < 1:
        raise ValueError(f"accum_grad_steps must be >= 1, got {accum_grad_steps}.")
    if accum_grad_steps % world_size != 0:
        raise ValueError("training.accum_grad_steps must be divisible by WORLD_SIZE. "
                         f"Got accum_grad_steps={accum_grad_steps} and WORLD_SIZE={world_size}.")
    return accum_grad_steps // world_size


def get_optimizer(model, config):
    params = [p for p in model.parameters() if p.requires_grad]
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return kinds[config["type"]](params, **config["params"])


def get_scheduler(optimizer, config, train_steps):
    warmup = config["warmup_steps"] if config["warmup_steps"] >= 1 else config["warmup_steps"] * train_steps

    def factor(step):
        if step < warmup:
            return step / max(1, warmup)
        return max(0.0, (train_steps - step) / max(1, train_steps - warmup))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
