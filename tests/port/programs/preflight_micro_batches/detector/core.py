"""What a yaml file makes: a model, its criterion, its optimizer and its data."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import yaml


class Detector(nn.Module):
    def __init__(self, classes=6, queries=100, width=256, teacher=True):
        super().__init__()
        self.teacher_enabled, self.epoch = teacher, 0
        self.stages = nn.ModuleList(
            [nn.Conv2d(3, 64, 7, 4, 3), nn.Conv2d(64, 128, 3, 2, 1), nn.Conv2d(128, width, 3, 2, 1)]
        )
        self.queries = nn.Parameter(torch.randn(queries, width))
        layer = nn.TransformerDecoderLayer(width, 8, 1024, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 3)
        self.logits, self.boxes = nn.Linear(width, classes), nn.Linear(width, 4)
        self.group = nn.Conv2d(width, 1, 1)

    def set_training_epoch(self, epoch):
        self.epoch = epoch

    def supervision_scale(self):
        return max(0.0, min(1.0, (14 - self.epoch) / 5))

    def forward(self, images, targets=None):
        x = images
        for stage in self.stages:
            x = F.silu(stage(x))
        memory = x.flatten(2).transpose(1, 2)
        decoded = self.decoder(self.queries.expand(len(images), -1, -1), memory)
        output = {"pred_logits": self.logits(decoded), "pred_boxes": self.boxes(decoded).sigmoid()}
        scale = self.supervision_scale()
        if targets is not None and self.teacher_enabled and scale > 0:
            masks = torch.stack([target["mask"] for target in targets])
            seen = F.interpolate(masks[:, None].float(), x.shape[2:])
            errors = F.binary_cross_entropy_with_logits(self.group(x).float(), seen)
            output["group_loss"] = scale * errors
        return output


class Criterion(nn.Module):
    def forward(self, output, targets, **meta):
        count = output["pred_logits"].shape[1]
        labels = torch.stack([target["labels"][:count] for target in targets])
        boxes = torch.stack([target["boxes"][:count] for target in targets])
        losses = {
            "loss_class": F.cross_entropy(output["pred_logits"].flatten(0, 1), labels.flatten()),
            "loss_box": F.l1_loss(output["pred_boxes"], boxes),
        }
        if "group_loss" in output:
            losses["loss_group"] = output["group_loss"]
        return losses


class YAMLConfig:
    def __init__(self, path):
        with open(path) as file:
            self.yaml_cfg = yaml.safe_load(file)
        self.model = Detector(**self.yaml_cfg["model"])
        self.criterion = Criterion()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **self.yaml_cfg["optimizer"])

    @property
    def train_dataloader(self):
        shape = self.yaml_cfg["train"]["shape"]
        for _ in range(self.yaml_cfg["train"]["batches"]):
            images = torch.rand(self.yaml_cfg["train"]["batch_size"], 3, *shape)
            yield images, [make_target(shape) for _ in images]


def make_target(shape, count=100):
    return {
        "labels": torch.randint(0, 6, (count,)),
        "boxes": torch.rand(count, 4),
        "mask": torch.rand(*shape) > 0.5,
    }


def move_targets(targets, device):
    return [{key: value.to(device) for key, value in target.items()} for target in targets]
