"""Pairs of frames with their flow."""

import torch
from torch.utils.data import DataLoader, Dataset


class FlyingShapes(Dataset):
    def __init__(self, size, length=22232):
        self.size, self.length = size, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        h, w = self.size
        g = torch.Generator().manual_seed(index)
        shift = torch.randint(-8, 9, (2,), generator=g)
        image = 255 * torch.rand(3, h, w, generator=g)
        flow = shift.float()[:, None, None].expand(2, h, w)
        return image, torch.roll(image, (int(shift[1]), int(shift[0])), (1, 2)), flow, torch.ones(h, w)


def fetch_dataloader(args):
    return DataLoader(FlyingShapes(args.image_size), batch_size=args.batch_size, shuffle=True,
                      num_workers=4, drop_last=True, pin_memory=True)
