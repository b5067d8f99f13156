"""Configuration and small helpers."""

import torch
from omegaconf import DictConfig, ListConfig, OmegaConf

DEFAULTS = {
    "experiment": {"output_dir": "outputs", "log_every": 50},
    "training": {
        "seed": 10086,
        "mixed_precision": "no",
        "gradient_accumulation_steps": 1,
        "max_grad_norm": None,
        "label_smoothing": 0.0,
        "min_masking_rate": 0.0,
    },
}


def get_config():
    """The defaults, the file of ``config=...``, and the other arguments, each above the one before."""
    cli_conf = OmegaConf.from_cli()
    yaml_conf = OmegaConf.load(cli_conf.config)
    return OmegaConf.merge(OmegaConf.create(DEFAULTS), yaml_conf, cli_conf)


def flatten_omega_conf(cfg, prefix=""):
    result = {}
    items = enumerate(cfg) if isinstance(cfg, ListConfig) else cfg.items()
    for key, value in items:
        name = f"{prefix}{key}"
        if isinstance(value, (DictConfig, ListConfig)):
            result.update(flatten_omega_conf(value, f"{name}."))
        else:
            result[name] = value
    return result


def mask_tokens(tokens, mask_id, min_rate):
    rate = torch.rand(tokens.shape[0], 1, device=tokens.device).clip(min_rate)
    masked = torch.rand(tokens.shape, device=tokens.device) < rate
    return torch.where(masked, torch.full_like(tokens, mask_id), tokens), masked


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    @property
    def avg(self):
        return self.sum / max(self.count, 1)

    def update(self, value):
        self.sum, self.count = self.sum + value, self.count + 1
