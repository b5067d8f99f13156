import os

import numpy as np
from paddle.io import Dataset


class SpokenWords(Dataset):
    """One array of log-mel spectrograms, and one of labels."""

    def __init__(self, folder, split):
        self.mel = np.load(os.path.join(folder, f"{split}_mel.npy"), mmap_mode="r")
        self.labels = np.load(os.path.join(folder, f"{split}_labels.npy"))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return np.asarray(self.mel[index], "float32")[None], np.int64(self.labels[index])
