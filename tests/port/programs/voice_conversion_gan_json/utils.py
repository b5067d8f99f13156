import argparse
import json
import os

import numpy as np
from paddle.io import Dataset


def get_hparams():
    parser = argparse.ArgumentParser()
    parser.add_argument("-c", "--config", type=str, default="./configs/config.json")
    parser.add_argument("-m", "--model", type=str, default="44k")
    args = parser.parse_args()
    with open(args.config, encoding="utf-8") as file:
        config = json.loads(file.read())
    hparams = HParams(**config)
    hparams.model_dir = os.path.join("./logs", args.model)
    return hparams


class HParams:
    """Attributes and items, of dictionaries within dictionaries."""

    def __init__(self, **kwargs):
        for key, value in kwargs.items():
            if isinstance(value, dict):
                value = HParams(**value)
            self[key] = value

    def keys(self):
        return self.__dict__.keys()

    def __getitem__(self, key):
        return getattr(self, key)

    def __setitem__(self, key, value):
        setattr(self, key, value)

    def __contains__(self, key):
        return key in self.__dict__


class UnitsAndAudio(Dataset):
    def __init__(self, path, segment_size):
        arrays = np.load(path)
        self.units, self.spec, self.wave = arrays["units"], arrays["spec"], arrays["wave"]
        self.segment_size = segment_size

    def __len__(self):
        return len(self.wave)

    def __getitem__(self, index):
        return self.units[index], self.spec[index], self.wave[index, : self.segment_size]
