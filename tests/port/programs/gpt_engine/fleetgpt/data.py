import os

import numpy as np
from paddle.io import DataLoader, Dataset, DistributedBatchSampler


class GPTDataset(Dataset):
    """Documents in one array of tokens, cut into samples of one length."""

    def __init__(self, input_dir, max_seq_len, mode):
        super().__init__()
        path = os.path.join(input_dir, "{}_ids.npy".format(mode.lower()))
        self.ids = np.load(path, mmap_mode="r")
        self.length, self.eos = max_seq_len, 50256

    def __len__(self):
        return (len(self.ids) - 1) // self.length

    def __getitem__(self, index):
        start = index * self.length
        tokens = np.array(self.ids[start : start + self.length + 1], dtype="int64")
        loss_mask = (tokens[1:] != self.eos).astype("float32")
        return tokens[:-1], np.arange(self.length), tokens[1:], loss_mask


def build_dataloader(config, mode, global_config):
    if mode not in config.keys():
        return None
    settings = dict(config[mode].dataset)
    settings.pop("name")
    dataset = GPTDataset(mode=mode, **settings)
    sampler = DistributedBatchSampler(
        dataset,
        batch_size=global_config.local_batch_size,
        shuffle=mode == "Train",
        drop_last=True,
    )
    return DataLoader(dataset, batch_sampler=sampler, **config[mode].loader)
