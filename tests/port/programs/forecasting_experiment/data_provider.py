import os

import numpy as np
from paddle.io import Dataset

BORDERS = {"train": (0.0, 0.7), "val": (0.7, 0.8), "test": (0.8, 1.0)}


class DatasetElec(Dataset):
    def __init__(self, root_path, flag, size):
        super().__init__()
        self.seq_len, self.label_len, self.pred_len = size
        values = np.load(os.path.join(root_path, "values.npy"))
        first, last = (int(len(values) * border) for border in BORDERS[flag])
        self.mean, self.std = values.mean(0), values.std(0)
        self.values = (values[first:last] - self.mean) / self.std

    def __len__(self):
        return len(self.values) - self.seq_len - self.pred_len + 1

    def __getitem__(self, index):
        end = index + self.seq_len
        return self.values[index:end], self.values[end - self.label_len : end + self.pred_len]

    def inverse_transform(self, values):
        return values * self.std + self.mean
