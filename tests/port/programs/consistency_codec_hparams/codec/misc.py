import contextlib
import copy
import os
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from .hparams import hparams


def get_rank():
    return int(os.environ.get("RANK", 0))


@contextlib.contextmanager
def ddp_sync(module, sync):
    """Gradients are reduced over the processes only where ``sync``."""
    if sync or not isinstance(module, torch.nn.parallel.DistributedDataParallel):
        yield
    else:
        with module.no_sync():
            yield


def get_grad_norm(parameters):
    norms = [p.grad.detach().norm(2) for p in parameters if p.grad is not None]
    return torch.stack(norms).norm(2)


class Waves(Dataset):
    def __init__(self):
        self.files = sorted(f for p in hparams.data_paths for f in Path(p).rglob("*.npy"))
        self.length = hparams.hop * hparams.data_length

    def __len__(self):
        return hparams.iters_per_epoch * hparams.batch_size

    def __getitem__(self, index):
        wave = np.load(self.files[index % len(self.files)], mmap_mode="r")
        start = np.random.randint(max(1, len(wave) - self.length))
        return torch.from_numpy(np.array(wave[start : start + self.length], "float32"))


def get_dataloader(batch_size):
    return DataLoader(Waves(), batch_size, shuffle=True, num_workers=8, drop_last=True)


class ExponentialMovingAverage:
    def __init__(self, model, decay):
        self.decay = decay
        self.average = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for a, p in zip(self.average.parameters(), model.parameters()):
            a.lerp_(p, 1.0 - self.decay)
