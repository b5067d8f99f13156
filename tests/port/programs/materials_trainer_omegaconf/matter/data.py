import json

import numpy as np
from paddle.io import DataLoader, Dataset


class Crystals(Dataset):
    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            self.rows = json.load(file)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        atoms = np.asarray(row["atoms"], "int64")
        return {"atoms": atoms, "energy": np.float32(row["energy"])}


def crystal_loader(cfg):
    return DataLoader(Crystals(cfg["path"]), batch_size=cfg["batch_size"], shuffle=True)
