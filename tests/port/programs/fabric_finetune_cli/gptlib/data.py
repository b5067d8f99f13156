"""Instructions and answers, as token ids."""

from dataclasses import dataclass

import torch
from torch.utils.data import Dataset


@dataclass
class Alpaca(Dataset):
    mask_prompt: bool = False
    ignore_index: int = -100
    seed: int = 42
    max_seq_length: int = 512
    size: int = 51760

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(self.seed + index)
        ids = torch.randint(3, 32000, (self.max_seq_length,), generator=g)
        labels = ids.clone()
        if self.mask_prompt:
            labels[: self.max_seq_length // 2] = self.ignore_index
        return {"input_ids": ids, "labels": labels}
