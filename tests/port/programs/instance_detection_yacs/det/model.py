"""A small one-stage detector, and batches for it."""

import torch
import torch.nn.functional as F
from torch import nn


class Detector(nn.Module):
    def __init__(self, width, num_classes, num_stages):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, width, 7, 4, 3), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, 4, 1), nn.BatchNorm2d(width), nn.ReLU())
        self.cls_heads = nn.ModuleList([nn.Conv2d(width, num_classes, 3, 1, 1) for _ in range(num_stages)])
        self.box_heads = nn.ModuleList([nn.Conv2d(width, 4, 3, 1, 1) for _ in range(num_stages)])

    @property
    def device(self):
        return next(self.parameters()).device

    def forward(self, batched_inputs):
        images = batched_inputs["image"].to(self.device)
        classes, boxes = (batched_inputs[k].to(self.device) for k in ("classes", "boxes"))
        features = self.backbone((images - 127.0) / 58.0)
        losses = {}
        for i, (cls_head, box_head) in enumerate(zip(self.cls_heads, self.box_heads)):
            losses[f"loss_cls_{i}"] = F.binary_cross_entropy_with_logits(cls_head(features), classes)
            losses[f"loss_box_{i}"] = F.smooth_l1_loss(box_head(features), boxes)
        return losses


def build_model(cfg):
    model = Detector(cfg.MODEL.WIDTH, cfg.MODEL.NUM_CLASSES, cfg.MODEL.NUM_STAGES)
    return model.to(torch.device(cfg.MODEL.DEVICE))


def build_train_loader(cfg):
    size, batch = cfg.INPUT.SIZE, cfg.SOLVER.IMS_PER_BATCH
    while True:
        yield {"image": 255 * torch.rand(batch, 3, size, size),
               "classes": torch.zeros(batch, cfg.MODEL.NUM_CLASSES, size // 16, size // 16),
               "boxes": torch.rand(batch, 4, size // 16, size // 16)}
