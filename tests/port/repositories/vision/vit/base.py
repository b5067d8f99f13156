import torch

from .utils.amp import NativeScaler, amp_dtype


class BaseTrainer:
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer
        self.loss_scaler = NativeScaler()

    def autocast(self):
        return torch.autocast("cuda", dtype=amp_dtype())
