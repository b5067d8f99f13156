"""Chains as dictionaries of arrays, cropped to one length."""

import json
import os
import random

import numpy as np
import paddle
from paddle.io import DataLoader, Dataset, DistributedBatchSampler

BY_RESIDUE = (
    "target_feat", "residue_index", "seq_mask", "pseudo_beta", "pseudo_beta_mask", "lddt",
)  # fmt: skip
BY_ALIGNMENT = ("msa_feat", "msa_mask", "true_msa", "bert_mask")


class FoldDataset(Dataset):
    def __init__(self, model_config, data_config, trainer_id=0, is_train=True):
        super().__init__()
        self.crop_size = model_config.data.eval.crop_size
        self.clusters = model_config.data.eval.max_msa_clusters
        self.folder = data_config["features_dir"]
        self.is_train = is_train
        with open(data_config["list"]) as f:
            self.chains = [line.strip() for line in f]
        random.Random(trainer_id).shuffle(self.chains)

    def __len__(self):
        return len(self.chains)

    def __getitem__(self, index):
        chain = dict(np.load(os.path.join(self.folder, self.chains[index] + ".npz")))
        length = len(chain["residue_index"])
        start = random.randint(0, max(length - self.crop_size, 0)) if self.is_train else 0
        crop = slice(start, start + self.crop_size)
        sample = {name: self.pad(chain[name][crop], 0) for name in BY_RESIDUE}
        for name in BY_ALIGNMENT:
            rows = self.pad(chain[name][: self.clusters, crop], 1)
            short = self.clusters - len(rows)
            sample[name] = np.pad(rows, [(0, short)] + [(0, 0)] * (rows.ndim - 1))
        return sample

    def pad(self, values, axis):
        widths = [(0, 0)] * values.ndim
        widths[axis] = (0, self.crop_size - values.shape[axis])
        return np.pad(values, widths)


def load_data_config(path):
    with open(path) as f:
        return json.load(f)


def build_loader(args, model_config, data_config, is_train):
    dataset = FoldDataset(model_config, data_config, paddle.distributed.get_rank(), is_train)
    sampler = DistributedBatchSampler(
        dataset, batch_size=args.batch_size if is_train else 1, shuffle=is_train, drop_last=is_train
    )
    return DataLoader(dataset, batch_sampler=sampler, num_workers=args.num_workers)


def forever(loader):
    while True:
        yield from loader
