import torch
import torch.nn as nn
import torch.nn.functional as F


class ReIDViT(nn.Module):
    def __init__(self, num_classes, cfg):
        super().__init__()
        width = cfg.MODEL.EMBED_DIM
        stride = cfg.MODEL.STRIDE_SIZE
        rows, columns = (side // stride for side in cfg.INPUT.SIZE_TRAIN)
        self.patches = nn.Conv2d(3, width, stride, stride)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.zeros(1, rows * columns + 1, width))
        layer = nn.TransformerEncoderLayer(
            width, cfg.MODEL.NUM_HEADS, 4 * width, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, cfg.MODEL.DEPTH)
        self.bottleneck = nn.BatchNorm1d(width)
        self.bottleneck.bias.requires_grad_(False)
        self.classifier = nn.Linear(width, num_classes, bias=False)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        feature = self.encoder(x)[:, 0]
        normed = self.bottleneck(feature)
        return (self.classifier(normed), feature) if self.training else normed


def triplet_loss(feature, target, margin):
    distance = torch.cdist(feature.float(), feature.float())
    same = target[:, None] == target[None, :]
    positive = distance.masked_fill(~same, -1.0).max(1).values
    negative = distance.masked_fill(same, float("inf")).min(1).values
    return F.relu(positive - negative + margin).mean()


def make_loss(cfg):
    def loss_func(score, feature, target):
        identity = F.cross_entropy(score, target, label_smoothing=0.1)
        triplet = triplet_loss(feature, target, cfg.SOLVER.MARGIN)
        return cfg.MODEL.ID_LOSS_WEIGHT * identity + cfg.MODEL.TRIPLET_LOSS_WEIGHT * triplet

    return loss_func
