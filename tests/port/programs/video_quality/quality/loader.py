import os

import numpy as np
from paddle.io import DataLoader, Dataset, DistributedBatchSampler


class FrameDataset(Dataset):
    """A line of the list is a folder of frames and the quality that viewers gave."""

    def __init__(self, file_path, data_prefix, num_seg=8, size=224):
        super().__init__()
        self.num_seg, self.size = num_seg, size
        with open(file_path) as f:
            pairs = [line.split() for line in f]
        self.info = [(os.path.join(data_prefix, name), float(score)) for name, score in pairs]

    def __len__(self):
        return len(self.info)

    def __getitem__(self, index):
        folder, score = self.info[index]
        frames = np.load(os.path.join(folder, "frames.npy"), mmap_mode="r")
        picked = np.linspace(0, len(frames) - 1, self.num_seg).astype(int)
        images = frames[picked, :, : self.size, : self.size].astype("float32") / 255.0
        return (images - 0.45) / 0.225, np.float32(score)


def build_dataloader(cfg, batch_size, places, shuffle):
    dataset = FrameDataset(cfg.file_path, cfg.data_prefix)
    sampler = DistributedBatchSampler(
        dataset, batch_size=batch_size, shuffle=shuffle, drop_last=shuffle
    )
    return DataLoader(dataset, batch_sampler=sampler, places=places, num_workers=4)
