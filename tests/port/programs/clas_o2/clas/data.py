import os

import numpy as np
from paddle.io import BatchSampler, DataLoader, Dataset, DistributedBatchSampler


class ImageNetDataset(Dataset):
    def __init__(self, image_root, cls_label_path):
        super().__init__()
        with open(os.path.join(image_root, cls_label_path)) as f:
            pairs = [line.split() for line in f]
        self.images = [os.path.join(image_root, path) for path, _ in pairs]
        self.labels = [int(label) for _, label in pairs]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return np.load(self.images[index] + ".npy"), np.int64(self.labels[index])


def build_dataloader(config, mode, device):
    config_dataset = dict(config[mode]["dataset"])
    config_dataset.pop("name")
    dataset = ImageNetDataset(**config_dataset)
    sampler_class = DistributedBatchSampler if mode == "Train" else BatchSampler
    sampler = sampler_class(dataset, **config[mode]["sampler"])
    return DataLoader(
        dataset, places=device, batch_sampler=sampler, num_workers=config[mode]["loader"]["num_workers"]
    )
