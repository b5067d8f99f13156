"""Ranks and devices, from the environment of torchrun."""

import os
from contextlib import nullcontext

import torch

WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))
RANK = int(os.environ.get("RANK", "0"))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", "0"))
IS_DISTRIBUTED = WORLD_SIZE > 1
IS_MAIN = RANK == 0
DEVICE = torch.device("cuda", LOCAL_RANK) if torch.cuda.is_available() else torch.device("cpu")


def init():
    if IS_DISTRIBUTED:
        torch.cuda.set_device(LOCAL_RANK)
        torch.distributed.init_process_group("nccl")


def unwrap_model(model):
    return model.module if hasattr(model, "module") else model


def maybe_no_sync(model, enabled):
    return model.no_sync() if enabled else nullcontext()
