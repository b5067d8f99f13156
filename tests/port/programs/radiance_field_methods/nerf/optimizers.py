"""The optimizers of several groups of parameters."""

import torch
from torch.amp.grad_scaler import GradScaler


class Optimizers:
    def __init__(self, config, param_groups):
        self.config = config
        self.optimizers = {}
        self.schedulers = {}
        self.parameters = {}
        for param_group_name, params in param_groups.items():
            if param_group_name not in config:
                raise RuntimeError(f"Optimizer config for '{param_group_name}' not found; provided: {config.keys()}")
            lr_init = config[param_group_name]["optimizer"].lr
            self.optimizers[param_group_name] = config[param_group_name]["optimizer"].setup(params=params)
            self.parameters[param_group_name] = params
            if config[param_group_name]["scheduler"]:
                self.schedulers[param_group_name] = config[param_group_name]["scheduler"].setup(
                    optimizer=self.optimizers[param_group_name], lr_init=lr_init)

    def zero_grad_some(self, param_groups):
        """Zero the gradients for the given parameter groups."""
        for param_group in param_groups:
            self.optimizers[param_group].zero_grad()

    def optimizer_scaler_step_some(self, grad_scaler: GradScaler, param_groups) -> None:
        """Take an optimizer step using a grad scaler ONLY on the specified param groups."""
        for param_group in param_groups:
            optimizer = self.optimizers[param_group]
            max_norm = self.config[param_group]["optimizer"].max_norm
            if max_norm is not None:
                grad_scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(self.parameters[param_group], max_norm)
            if any(any(p.grad is not None for p in g["params"]) for g in optimizer.param_groups):
                grad_scaler.step(optimizer)

    def scheduler_step_all(self, step: int) -> None:
        for scheduler in self.schedulers.values():
            scheduler.step()
