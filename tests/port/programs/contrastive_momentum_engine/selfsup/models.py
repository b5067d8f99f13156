"""A vision transformer with its momentum copy."""

import copy

import paddle
from paddle import nn
from paddle.nn import functional as F


class PatchTransformer(nn.Layer):
    def __init__(self, width, depth, heads, patch=16):
        super().__init__()
        self.patches = nn.Conv2D(3, width, patch, patch)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, activation="gelu", normalize_before=True)
        self.blocks = nn.TransformerEncoder(layer, depth)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose([0, 2, 1])
        return self.norm(self.blocks(x).mean(axis=1))


def projector(width, hidden, out):
    return nn.Sequential(
        nn.Linear(width, hidden, bias_attr=False), nn.BatchNorm1D(hidden), nn.ReLU(), nn.Linear(hidden, out))


class MoCoV3(nn.Layer):
    def __init__(self, width=384, depth=12, heads=6, dim=256, hidden=4096, T=0.2, momentum=0.99):
        super().__init__()
        self.T = T
        self.m = momentum
        self.base_encoder = nn.Sequential(PatchTransformer(width, depth, heads), projector(width, hidden, dim))
        self.predictor = projector(dim, hidden, dim)
        self.momentum_encoder = copy.deepcopy(self.base_encoder)
        for param in self.momentum_encoder.parameters():
            param.stop_gradient = True

    @paddle.no_grad()
    def update_momentum_encoder(self):
        for mean, param in zip(self.momentum_encoder.parameters(), self.base_encoder.parameters()):
            mean.set_value(mean * self.m + param * (1.0 - self.m))

    def contrastive_loss(self, q, k):
        with paddle.amp.auto_cast(False):
            q = F.normalize(q.astype("float32"), axis=1)
            k = F.normalize(k.astype("float32"), axis=1)
            logits = paddle.einsum("nc,mc->nm", q, k) / self.T
            labels = paddle.arange(logits.shape[0], dtype="int64")
            return F.cross_entropy(logits, labels) * (2 * self.T)

    def forward(self, views):
        x1, x2 = views
        q1 = self.predictor(self.base_encoder(x1))
        q2 = self.predictor(self.base_encoder(x2))
        with paddle.no_grad():
            self.update_momentum_encoder()
            k1 = self.momentum_encoder(x1)
            k2 = self.momentum_encoder(x2)
        return self.contrastive_loss(q1, k2) + self.contrastive_loss(q2, k1)


def build_model(config):
    config = copy.deepcopy(config)
    name = config.pop("name")
    return globals()[name](**config)
