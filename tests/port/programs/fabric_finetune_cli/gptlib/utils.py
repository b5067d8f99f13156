"""Devices, precisions, optimizers, and the command line."""

from typing import Any, Union

import torch
import torch.nn.functional as F
from jsonargparse import CLI as jsonargparse_CLI
from jsonargparse import set_config_read_mode, set_docstring_parse_options


def parse_devices(devices: Union[str, int]) -> int:
    if devices in (-1, "auto"):
        return torch.cuda.device_count() or 1
    if isinstance(devices, int) and devices > 0:
        return devices
    raise ValueError(f"Devices must be 'auto' or a positive integer, got: {devices!r}")


def get_default_supported_precision(training: bool) -> str:
    """The default precision that is supported by the hardware: either bf16 or 16."""
    if torch.cuda.is_available():
        if torch.cuda.is_bf16_supported():
            return "bf16-true"
        return "16-mixed" if training else "16-true"
    return "bf16-true"


def instantiate_torch_optimizer(optimizer, model_parameters, **kwargs):
    if isinstance(optimizer, str):
        return getattr(torch.optim, optimizer)(model_parameters, **kwargs)
    init_args = dict(optimizer["init_args"])
    module, _, name = optimizer["class_path"].rpartition(".")
    assert module == "torch.optim"
    return getattr(torch.optim, name)(model_parameters, **init_args)


def chunked_cross_entropy(logits, targets, chunk_size=128, ignore_index=-100):
    logits = logits.reshape(-1, logits.size(-1))
    targets = targets.reshape(-1)
    loss_chunks = [
        F.cross_entropy(logit_chunk, target_chunk, ignore_index=ignore_index, reduction="none")
        for logit_chunk, target_chunk in zip(logits.split(chunk_size, dim=0), targets.split(chunk_size, dim=0))
    ]
    non_masked_elems = (targets != ignore_index).sum()
    return torch.cat(loss_chunks).sum() / non_masked_elems.maximum(torch.ones_like(non_masked_elems))


def CLI(*args: Any, **kwargs: Any) -> Any:
    set_docstring_parse_options(attribute_docstrings=True)
    set_config_read_mode(urls_enabled=True)
    return jsonargparse_CLI(*args, **kwargs)
