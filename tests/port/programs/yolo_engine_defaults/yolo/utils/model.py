from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate


class DetectionModel(nn.Module):
    """Predicts one box and its confidence in each cell of a grid."""

    def __init__(self, gains, width=32):
        super().__init__()
        self.gains = gains
        sizes = [3, width, 2 * width, 4 * width, 4 * width, 4 * width]
        self.backbone = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.SiLU()
                )
                for a, b in zip(sizes, sizes[1:])
            )
        )
        self.head = nn.Conv2d(sizes[-1], 5, 1)

    def predict(self, images):
        return self.head(self.backbone(images))

    def forward(self, batch):
        cells = self.predict(batch["img"]).flatten(2).transpose(1, 2)
        target = batch["boxes"]
        box = nn.functional.l1_loss(cells[..., :4], target[..., :4])
        cls = nn.functional.binary_cross_entropy_with_logits(cells[..., 4], target[..., 4])
        losses = torch.stack([self.gains[0] * box, self.gains[1] * cls])
        return losses * len(batch["img"]), losses.detach()


def build_dataloader(path, batch_size, size, workers):
    images = torch.load(Path(path) / f"images_{size}.pt")
    boxes = torch.load(Path(path) / f"boxes_{size}.pt")

    def collate(samples):
        img, cells = default_collate(samples)
        return {"img": img, "boxes": cells}

    dataset = TensorDataset(images, boxes)
    return DataLoader(dataset, batch_size, True, num_workers=workers, collate_fn=collate)
