# -*- coding: utf-8 -*
import os

import numpy as np
from paddle.io import DataLoader, Dataset

from erniekit.common.register import RegisterSet


class DataSetReaders(object):
    def __init__(self, train_reader, dev_reader=None, test_reader=None):
        self.train_reader = train_reader
        self.dev_reader = dev_reader
        self.test_reader = test_reader


class Lines(Dataset):
    def __init__(self, folder, max_seq_len):
        super().__init__()
        self.ids = np.load(os.path.join(folder, "ids.npy"))[:, :max_seq_len]
        self.labels = np.load(os.path.join(folder, "labels.npy"))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.ids[index], self.labels[index]


@RegisterSet.data_set_reader.register
class ClassificationReader(object):
    def __init__(self, config):
        self.epoch = config["epoch"]
        self.loader = DataLoader(
            Lines(config["data_path"], config["max_seq_len"]),
            batch_size=config["batch_size"],
            shuffle=config["shuffle"],
        )

    def __call__(self):
        for _ in range(self.epoch):
            yield from self.loader

    def convert_fields_to_dict(self, batch):
        return {"text_a": batch[0], "label": batch[1]}
