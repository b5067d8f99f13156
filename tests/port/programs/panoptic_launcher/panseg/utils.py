import json
import logging
import os

import numpy as np
from paddle.io import Dataset

logger = logging.getLogger("panseg")
logging.basicConfig(level=logging.INFO)


class COCOPanoptic(Dataset):
    def __init__(self, dataset_root, mode):
        super().__init__()
        self.root, self.mode = dataset_root, mode
        with open(os.path.join(dataset_root, "panoptic_{}.json".format(mode))) as file:
            self.samples = json.load(file)["annotations"]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        name = self.samples[index]["file_name"]
        return dict(np.load(os.path.join(self.root, self.mode, name + ".npz")))


def build_dataset(cfg):
    cfg = {k: v for k, v in cfg.items() if k != "type"}
    return COCOPanoptic(**cfg)
