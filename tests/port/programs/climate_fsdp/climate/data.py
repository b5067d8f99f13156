import os

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class ERA5(Dataset):
    def __init__(self, root_dir, split, variables, hours=6):
        self.files = sorted(os.listdir(os.path.join(root_dir, split)))
        self.folder, self.variables, self.hours = os.path.join(root_dir, split), variables, hours

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        arrays = np.load(os.path.join(self.folder, self.files[index]))
        fields = np.stack([arrays[name] for name in self.variables], 1)
        start = np.random.randint(0, len(fields) - self.hours)
        return torch.from_numpy(fields[start]), torch.from_numpy(fields[start + self.hours])


def build_loader(conf, variables, split, rank, world_size):
    dataset = ERA5(conf["root_dir"], split, variables)
    sampler = DistributedSampler(dataset, world_size, rank, shuffle=split == "train")
    return DataLoader(
        dataset,
        batch_size=conf["batch_size"],
        sampler=sampler,
        num_workers=conf["num_workers"],
        drop_last=True,
    )


def latitude_weights(rows):
    weights = torch.cos(torch.deg2rad(torch.linspace(-89.0, 89.0, rows)))
    return weights / weights.mean()
